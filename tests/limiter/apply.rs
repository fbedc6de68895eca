//! Configurations applied to a running limiter: the permits available afterwards, the order of
//! waiters, errors, and the bound over every stretch of time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{
    AnyPolicy, Change, Clock, ConfigError, Keep, ManualClock, Nanos, Policy, PolicyConfig, RateLimiter,
    Refusal, Request,
};
use tokio_test::task::spawn;

type Limiter = RateLimiter<AnyPolicy, ManualClock>;

fn limiter(line: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(line.parse().expect("a policy"), clock.clone()), clock)
}

fn config(line: &str) -> PolicyConfig {
    line.parse().expect("a configuration")
}

/// At most twenty permits; none accrues within a second.
const KINDS: [&str; 7] = [
    "token_bucket 20/h burst 20",
    "smooth_bursty 1/h max_burst 19h start_full",
    "leaky_bucket 20/h nodelay 19",
    "fixed_window 20/h",
    "sliding_window 20/h cells 4",
    "sliding_estimate 20/h",
    "sliding_log 20/h",
];

#[test]
fn used_permits_stay_used_in_each_kind() {
    for from in KINDS {
        for to in KINDS.into_iter().chain(["token_bucket 20/h burst 20 tolerance 1s"]) {
            let (limiter, clock) = limiter(from);
            clock.advance(Duration::from_secs(1));
            (0..8).for_each(|_| limiter.try_acquire().map(drop).expect("available"));
            limiter.apply(&config(to), Keep::Count).expect("fits");
            assert_eq!(limiter.config(), config(to));
            assert_eq!(limiter.status().available, 12, "{from}, {to}");
            let granted = (0..30).filter(|_| limiter.try_acquire().is_ok()).count();
            assert_eq!(granted, 12, "{from}, {to}");
        }
    }
}

/// A bucket at a slow rate had a configuration that makes no policy, because it does not hold its
/// burst.
#[test]
fn the_configuration_in_force_makes_a_policy_at_every_rate() -> Result<(), Box<dyn std::error::Error>> {
    for line in [
        "token_bucket 10/s burst 1000",
        "token_bucket 7/s burst 1000 interval_refill",
        "token_bucket 10/s burst 1000 tolerance 500d",
        "token_bucket 10/s burst 1000 start_with 900",
        "leaky_bucket 10/s nodelay 1000 capacity 1000",
    ] {
        for rate in ["1/d", "1/30d", "1/s", "3/365d", "zero", "unlimited"] {
            let (limiter, _) = limiter(line);
            limiter.set_rate(rate.parse()?);
            let config = limiter.config();
            let same = AnyPolicy::try_from(config.clone()).map_err(|error| format!("{config}: {error}"))?;
            let same = RateLimiter::with_clock(same, ManualClock::new());
            assert_eq!(same.status().limit, limiter.status().limit, "{line} at {rate}");
            limiter.apply(&config, Keep::Count)?;
            limiter.set_rate("10/s".parse()?);
        }
    }
    Ok(())
}

/// The number of permits to take away did not fit into 64 times 32 bits, and the rest stayed.
#[test]
fn no_tolerance_is_so_large_that_its_permits_stay() {
    for line in [
        "token_bucket 66709/2s burst 4294967295 interval_refill tolerance 442d",
        "token_bucket 1000000/s burst 10 tolerance 400d",
    ] {
        let [(replaced, _), (full, _)] = [limiter("fixed_window 100/min"), limiter(line)];
        replaced.apply(&config(line), Keep::Count).expect("fits");
        full.keep_at_most(100);
        for limiter in [replaced, full] {
            assert!(limiter.status().available <= 100, "{line}: {:?}", limiter.status());
            assert!(limiter.try_acquire_many(101).is_err(), "{line}");
        }
    }
}

#[test]
fn neither_bound_is_exceeded() -> Result<(), ConfigError> {
    // The old policy, the permits taken, the new policy, and the permits available by count and by
    // ratio.
    for (from, taken, to, count, ratio) in [
        ("token_bucket 1/h burst 10", 4, "fixed_window 100/h", 6, 60),
        ("token_bucket 1/h burst 10", 4, "fixed_window 7/h", 3, 4),
        ("token_bucket 1/h burst 10", 4, "fixed_window 3/h", 0, 1),
        ("fixed_window 10/h", 10, "token_bucket 1/h burst 100", 0, 0),
        ("fixed_window 10/h", 0, "token_bucket 1/h burst 100", 10, 100),
        ("deny_all", 0, "token_bucket 1/h burst 100", 0, 0),
        ("unlimited", 100, "token_bucket 1/h burst 100", 100, 100),
        ("token_bucket 1/h burst 10", 4, "deny_all", 0, 0),
        ("token_bucket 1/h burst 10", 4, "unlimited", u64::MAX, u64::MAX),
        ("token_bucket 1/h burst 10", 4, "smooth_bursty zero start_full", 0, 0),
        ("token_bucket zero burst 10", 4, "sliding_log 10/h", 6, 6),
        ("smooth_bursty zero", 0, "sliding_log 10/h", 0, 0),
        ("sliding_log zero", 0, "sliding_window 10/h cells 3", 0, 0),
    ] {
        for (keep, available) in [(Keep::Count, count), (Keep::Ratio, ratio), (Keep::Nothing, u64::MAX)] {
            let (limiter, _) = limiter(from);
            (0..taken).for_each(|_| limiter.try_acquire().map(drop).expect("available"));
            limiter.apply(&config(to), keep)?;
            let fresh =
                RateLimiter::with_clock(to.parse::<AnyPolicy>()?, ManualClock::new()).status().available;
            let available = if keep == Keep::Nothing { fresh } else { available };
            assert_eq!(limiter.status().available, available, "{from}, {to}, {keep:?}");
        }
    }
    Ok(())
}

#[test]
fn a_debt_stays_a_debt() -> Result<(), ConfigError> {
    for from in ["token_bucket 1/s burst 10", "smooth_bursty 1/s max_burst 9s start_full"] {
        for to in ["token_bucket 2/s burst 10", "smooth_bursty 2/s", "leaky_bucket 2/s nodelay 3"] {
            if from.split(' ').next() == to.split(' ').next() {
                continue;
            }
            let (limiter, _) = limiter(from);
            limiter.debit(15);
            // Five are owed and one more is needed; each takes half a second.
            limiter.apply(&config(to), Keep::Count)?;
            let refusal = limiter.try_acquire().expect_err("in debt");
            assert_eq!(refusal.retry_after(), Some(Duration::from_secs(3)), "{from}, {to}");
        }
    }
    // An infinite wait becomes a very long one.
    let (limiter, clock) = limiter("token_bucket 1/d burst 10");
    (0..4).for_each(|_| limiter.debit(u32::MAX));
    limiter.apply(&config("leaky_bucket 1000/s"), Keep::Count)?;
    clock.advance(Duration::from_secs(u64::from(u32::MAX) / 1000));
    assert!(limiter.try_acquire().is_err());
    clock.advance(Duration::from_secs(1));
    assert!(limiter.try_acquire().is_ok());
    Ok(())
}

#[test]
fn a_configuration_that_is_no_policy_changes_nothing() {
    let (limiter, _) = limiter("token_bucket 1/h burst 10");
    limiter.try_acquire_many(4).map(drop).expect("available");
    let mut bad = config("token_bucket 1/h burst 10");
    if let PolicyConfig::TokenBucket { start_with, .. } = &mut bad {
        *start_with = Some(11);
    }
    let error = limiter.apply(&bad, Keep::Nothing).expect_err("no policy").to_string();
    assert_eq!(error, "start_with 11 exceeds the burst of 10");
    let error = limiter.apply(&config("sliding_log 99999999/h"), Keep::Nothing).expect_err("no policy");
    assert_eq!(error.to_string(), "a log of 99999999 permits is longer than the limit of 16777215");
    assert_eq!((limiter.status().available, limiter.config()), (6, config("token_bucket 1/h burst 10")));
}

#[test]
fn waiters_keep_their_positions() -> Result<(), ConfigError> {
    let (limiter, clock) = limiter("token_bucket 1/h burst 3 start_with 0");
    let ask = |n: u32| limiter.acquire_owned(Request::permits(n));
    let (mut first, mut second, mut large) = (spawn(ask(1)), spawn(ask(2)), spawn(ask(3)));
    for waiter in [&mut first, &mut second, &mut large] {
        assert!(waiter.poll().is_pending());
    }
    limiter.apply(&config("fixed_window 2/min"), Keep::Count)?;
    // The request can no longer be granted.
    let refusal = Refusal::ExceedsLimit { requested: 3, limit: 2 };
    assert!(large.is_woken());
    assert!(matches!(large.poll(), std::task::Poll::Ready(Err(told)) if told == refusal));
    assert_eq!(limiter.status().waiting, 2);
    clock.advance(Duration::from_secs(60));
    assert!(first.poll().is_ready());
    assert!(second.poll().is_pending());
    limiter.apply(&config("leaky_bucket 1/s nodelay 1"), Keep::Ratio)?;
    assert!(second.poll().is_pending());
    clock.advance(Duration::from_secs(2));
    assert!(second.poll().is_ready());
    assert_eq!(limiter.status().waiting, 0);
    Ok(())
}

#[test]
fn a_grant_from_before_gives_back_nothing() -> Result<(), Box<dyn std::error::Error>> {
    for from in KINDS {
        for to in KINDS {
            if from.split(' ').next() == to.split(' ').next() {
                continue;
            }
            let (limiter, clock) = limiter(from);
            clock.advance(Duration::from_secs(1));
            let estimate = limiter.reserve(5)?;
            let mut unseen = spawn(limiter.acquire_owned(Request::permits(3)));
            assert!(unseen.poll().is_ready());
            limiter.apply(&config(to), Keep::Count)?;
            let later = limiter.reserve(4)?;
            estimate.settle(0);
            drop(unseen);
            assert_eq!(limiter.status().available, 8, "{from}, {to}");
            // Returning to the first kind does not make its old charges valid again.
            limiter.apply(&config(from), Keep::Count)?;
            later.settle(0);
            assert_eq!(limiter.status().available, 8, "{from}, {to}");
            let newest = limiter.reserve(4)?;
            newest.settle(1);
            assert_eq!(limiter.status().available, 7, "{from}, {to}");
        }
    }
    Ok(())
}

#[test]
fn a_wall_clock_goes_on() -> Result<(), ConfigError> {
    let (limiter, clock) = limiter("unlimited");
    clock.advance(Duration::from_secs(40));
    limiter.apply(&config("fixed_window 2/min at_wall_clock 10s"), Keep::Count)?;
    assert!(limiter.try_acquire_many(2).is_ok());
    let refusal = limiter.try_acquire().expect_err("the minute's are used");
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)));
    Ok(())
}

/// Threads take permits while another thread applies one kind of policy after another. The clock
/// stands still, so exactly the initial permits are granted.
#[test]
fn no_permit_is_granted_twice_or_lost_while_kinds_change() -> Result<(), ConfigError> {
    for round in 0..20 {
        let (limiter, _) = limiter(KINDS[round % KINDS.len()]);
        let (granted, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        if limiter.try_acquire().is_ok() {
                            granted.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                        }
                    }
                });
            }
            for step in 0..60 {
                // Sliding kinds count a permit taken at the start like the other kinds do.
                let kind = KINDS[(round + step * 3 + step / 7) % KINDS.len()];
                limiter.apply(&config(kind), Keep::Count).expect("fits");
                thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        });
        let rest = (0..30).filter(|_| limiter.try_acquire().is_ok()).count();
        let granted = granted.into_inner();
        assert_eq!(granted + rest, 20, "round {round}");
    }
    Ok(())
}

/// The most that a policy grants: in a stretch of time in which only this policy decides, and from
/// a change on.
struct Bound {
    limit: f64,
    /// The seconds in which the limit accrues.
    period: f64,
    /// Whether permits accrue evenly.
    even: bool,
    /// By how many periods a count may end early.
    early: f64,
    /// How many limits a single point in time can have.
    at_once: f64,
}

const POLICIES: [(&str, Bound); 8] = [
    ("token_bucket 5/s burst 10", Bound { limit: 10.0, period: 2.0, even: true, early: 0.0, at_once: 1.0 }),
    ("token_bucket 50/s burst 3", Bound { limit: 3.0, period: 0.06, even: true, early: 0.0, at_once: 1.0 }),
    (
        "smooth_bursty 10/s max_burst 2s",
        Bound { limit: 21.0, period: 2.1, even: true, early: 0.0, at_once: 1.0 },
    ),
    ("leaky_bucket 20/s nodelay 4", Bound { limit: 5.0, period: 0.25, even: true, early: 0.0, at_once: 1.0 }),
    ("fixed_window 12/s", Bound { limit: 12.0, period: 1.0, even: false, early: 1.0, at_once: 2.0 }),
    (
        "fixed_window 7/2s from_first_grant",
        Bound { limit: 7.0, period: 2.0, even: false, early: 0.0, at_once: 2.0 },
    ),
    (
        "sliding_window 15/s cells 4",
        Bound { limit: 15.0, period: 1.0, even: false, early: 0.25, at_once: 1.0 },
    ),
    ("sliding_log 9/s", Bound { limit: 9.0, period: 1.0, even: false, early: 0.0, at_once: 1.0 }),
];

impl Bound {
    /// Returns the bound for a stretch in which only this policy decides.
    fn alone(&self, seconds: f64) -> f64 {
        match self.even {
            true => self.limit + self.limit / self.period * seconds,
            false => self.limit * ((seconds / self.period + self.early).floor() + self.at_once),
        }
    }

    /// Returns what accrues during a stretch that starts with a change.
    fn inflow(&self, seconds: f64) -> f64 {
        match self.even {
            true => self.limit / self.period * seconds + 1.0,
            false => self.limit * (seconds / self.period + self.early).floor(),
        }
    }
}

fn seconds(from: Nanos, to: Nanos) -> f64 {
    to.saturating_since(from).as_duration().as_secs_f64()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_span_keeps_the_bound(
        acts in vec((0..8usize, 0u64..700_000_000, 0usize..25), 1..40),
        ratio: bool,
    ) {
        let (limiter, clock) = limiter(POLICIES[0].0);
        // When each policy took effect, and when permits were granted.
        let (mut eras, mut grants) = (vec![(Nanos::ZERO, 0)], Vec::new());
        for (next, span, tries) in acts {
            for _ in 0..tries {
                if limiter.try_acquire().is_ok() {
                    grants.push((clock.now(), eras.len() - 1));
                }
            }
            if span % 3 == 0 {
                let before = limiter.status();
                let new = config(POLICIES[next].0);
                // A change of only the numbers keeps permits by the rule of the policy.
                if limiter.config().change_to(&new).is_none() {
                    let keep = if ratio { Keep::Ratio } else { Keep::Count };
                    limiter.apply(&new, keep)?;
                    let after = limiter.status();
                    if ratio {
                        prop_assert!(after.available * before.limit <= before.available * after.limit);
                    } else {
                        let used = before.limit - before.available.min(before.limit);
                        prop_assert_eq!(after.available, before.available.min(after.limit.saturating_sub(used)));
                        eras.push((clock.now(), next));
                    }
                }
            }
            clock.advance(Duration::from_nanos(span));
        }
        if ratio {
            return Ok(());
        }
        for (begin, (from, first)) in grants.iter().enumerate() {
            for (end, (to, last)) in grants.iter().enumerate().skip(begin) {
                let most: f64 = (*first..=*last)
                    .map(|era| {
                        let ends = eras.get(era + 1).filter(|_| era < *last).map_or(*to, |(since, _)| *since);
                        let (since, policy) = eras[era];
                        let bound = &POLICIES[policy].1;
                        if era == *first { bound.alone(seconds(*from, ends)) } else { bound.inflow(seconds(since, ends)) }
                    })
                    .sum();
                prop_assert!((end - begin + 1) as f64 <= most + 1e-6, "{} in {} to {}", end - begin + 1, from, to);
            }
        }
    }

    /// Applying a configuration results in its terms, whatever the steps before.
    #[test]
    fn a_configuration_that_is_applied_is_reported(
        lines in vec(prop::sample::select(vec![
            "token_bucket 5/s burst 10",
            "token_bucket 8/s burst 3 tolerance 5ms",
            "token_bucket 8/s burst 3 interval_refill",
            "smooth_bursty 5/s",
            "smooth_warming_up 5/s warm_up 3s cold_factor 4.5 start_warm",
            "leaky_bucket 5/s",
            "leaky_bucket 5/s capacity 3",
            "leaky_bucket 5/s nodelay 2 max_wait 1s",
            "fixed_window 5/s",
            "fixed_window 7/min from_first_grant",
            "sliding_window 7/min cells 3",
            "sliding_window 7/min cells 7",
            "sliding_estimate 7/min",
            "sliding_log 5/s with_capacity 10",
            "sliding_log 9/s with_capacity 10",
            "unlimited",
            "deny_all",
        ]), 1..12),
        keep in prop::sample::select(vec![Keep::Count, Keep::Ratio, Keep::Nothing]),
    ) {
        let (limiter, clock) = limiter("fixed_window 5/s");
        for line in lines {
            limiter.apply(&config(line), keep)?;
            prop_assert_eq!(limiter.config().to_string(), line);
            prop_assert_eq!(limiter.policy().rate().to_string(), line.parse::<AnyPolicy>()?.rate().to_string());
            let told = limiter.try_acquire().err().and_then(|refusal| refusal.retry_after());
            if let Some(wait) = told {
                clock.advance(wait);
                prop_assert!(limiter.try_acquire().is_ok(), "{} after {:?}", line, wait);
            }
            limiter.reset();
            let new = RateLimiter::with_clock(line.parse::<AnyPolicy>()?, ManualClock::new());
            prop_assert_eq!(limiter.status().available, new.status().available, "{}", line);
        }
    }
}

/// Bug: the configuration of a bucket with a tolerance, whose burst was lowered below its start,
/// made no policy.
#[test]
fn the_configuration_of_a_bucket_whose_burst_was_lowered_makes_a_policy()
-> Result<(), Box<dyn std::error::Error>> {
    let policy: AnyPolicy = "token_bucket 5/s burst 10 start_with 8 tolerance 1s".parse()?;
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    limiter.change(Change::only_burst(5))?;
    let text = limiter.config().to_string();
    assert_eq!(text, "token_bucket 5/s burst 5 start_with 5 tolerance 1s");
    assert_eq!(text.parse::<AnyPolicy>()?.config().to_string(), text);
    limiter.apply(&limiter.config(), Keep::Ratio)?;
    Ok(())
}

/// Bug: a bucket was changed as if it followed the same wall clock.
#[test]
fn another_wall_clock_is_another_policy() -> Result<(), Box<dyn std::error::Error>> {
    let lines = ["interval_refill", "at_wall_clock 0s", "at_wall_clock 30s"];
    for (old, new) in lines.into_iter().flat_map(|old| lines.map(|new| (old, new))) {
        let [from, to] =
            [old, new].map(|line| format!("token_bucket 5/min burst 5 {line}").parse::<PolicyConfig>());
        assert_eq!(from?.change_to(&to?).is_some(), old == new, "{old} to {new}");
    }
    Ok(())
}

/// Bug: after the burst was lowered, a reset left more permits than the configuration starts with.
#[test]
fn a_reset_leaves_what_the_configuration_starts_with() -> Result<(), Box<dyn std::error::Error>> {
    let policy: AnyPolicy = "token_bucket 5/s burst 10 start_with 8 tolerance 1s".parse()?;
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    limiter.change(Change::only_burst(5))?;
    let same = RateLimiter::with_clock(AnyPolicy::try_from(limiter.config())?, ManualClock::new());
    limiter.reset();
    assert_eq!((limiter.status().available, same.status().available), (5, 5));
    Ok(())
}
