//! Late timers: the average rate is exact for any number of callers, even without saved permits,
//! and the bound that the catch-up states holds in every span.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::late::LateTimer;
use crate::support::spawn_pending;
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::AcquireOwned;
use tidegate::{
    AllOf, AnyPolicy, Clock, LeakyBucket, ManualClock, Nanos, Rate, RateLimiter, Request, SmoothBursty,
    SmoothWarmingUp, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_ready, assert_ready_ok};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

type Limiter = RateLimiter<AnyPolicy, LateTimer>;

/// Every policy that gives permits at a rate, with a burst of one, and warm where that matters.
fn without_stock(per_second: u64) -> [AnyPolicy; 5] {
    let rate = Rate::per_second(per_second);
    // A step for each permit.
    let step = format!("1/{}ns", 1_000_000_000 / per_second).parse().expect("a rate");
    [
        SmoothBursty::new(rate).max_burst(Duration::ZERO).into(),
        SmoothWarmingUp::new(rate, Duration::from_secs(1)).start_warm().into(),
        TokenBucket::new(rate, 1).into(),
        TokenBucket::new(step, 1).interval_refill().expect("steps").into(),
        LeakyBucket::new(rate).into(),
    ]
}

/// The most permits in a span of no length. Where they come in steps, one may be taken before a
/// step and one after it.
fn burst(policy: &AnyPolicy) -> u64 {
    if format!("{policy:?}").contains("1/") { 2 } else { 1 }
}

fn limiter(policy: AnyPolicy, lates: &[u64]) -> (Limiter, ManualClock) {
    let (clock, lates) = (ManualClock::new(), lates.to_vec());
    let timer = LateTimer::new(clock.clone(), lates.into_iter().cycle());
    (RateLimiter::with_clock(policy, timer), clock)
}

/// How tasks acquire one permit each time.
type Acquire = Pin<Box<dyn Future<Output = ()>>>;

/// A waker that remembers when it was called: that is when its request was granted.
struct Woken {
    clock: ManualClock,
    at: Mutex<Option<Nanos>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.at.lock().expect("no panic") = Some(self.clock.now());
    }
}

/// Tasks that acquire in a loop and do so much between, on an executor with one thread, until the
/// time is over. Returns the times of their grants.
fn run(
    acquire: &dyn Fn() -> Acquire,
    clock: &ManualClock,
    tasks: usize,
    work: &[u64],
    until: u64,
) -> Vec<u64> {
    let task = |_| (acquire(), Arc::new(Woken { clock: clock.clone(), at: Mutex::new(Some(Nanos::MAX)) }));
    let mut tasks: Vec<(Acquire, Arc<Woken>)> = (0..tasks).map(task).collect();
    let (mut works, mut grants) = (work.iter().cycle(), Vec::new());
    while clock.now().as_u64() < until {
        let before = clock.now();
        for (acquire_now, woken) in &mut tasks {
            let mut next = woken.at.lock().expect("no panic").take();
            while let Some(granted) = next.take()
                && clock.now().as_u64() < until
            {
                clock.advance(Duration::from_nanos(*works.next().expect("a cycle")));
                let waker = Waker::from(woken.clone());
                if acquire_now.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    // A new one is granted when it is polled.
                    let at = if granted == Nanos::MAX { clock.now() } else { granted };
                    grants.push(at.as_u64());
                    (*acquire_now, next) = (acquire(), Some(Nanos::MAX));
                } else {
                    next = woken.at.lock().expect("no panic").take();
                }
            }
        }
        if clock.now() == before {
            clock.advance(Duration::from_nanos(10 * US));
        }
    }
    grants.sort_unstable();
    grants
}

fn one(limiter: &Limiter) -> Acquire {
    let acquire: AcquireOwned<_, _> = limiter.acquire_owned(1);
    Box::pin(async move {
        acquire.await.expect("granted");
    })
}

/// A reservation that is made when the task comes to it.
fn reserved(limiter: &Limiter) -> Acquire {
    let limiter = limiter.clone();
    Box::pin(async move {
        limiter.reserve(1).expect("a reservation").await.expect("granted");
    })
}

/// In any span at most `burst + rate * (span + catch_up)`.
fn assert_bound(grants: &[u64], burst: u64, per_second: u64, catch_up: u64) {
    // The number of each grant less what the rate allows until then: it never rises by more than
    // the bound from one to another.
    let (mut least, second) = (i128::MAX, 1_000_000_000);
    for (number, at) in grants.iter().enumerate() {
        let level = |number: usize| number as i128 * second - i128::from(*at) * i128::from(per_second);
        least = least.min(level(number));
        let most = i128::from(burst) * second + i128::from(catch_up) * i128::from(per_second);
        assert!(level(number + 1) - least <= most, "grant {number} at {at} ns");
    }
}

/// When the tasks last had to wait, all permits were granted that had come in, but for one in two
/// hundred. Behind a wait they catch up with the late timer.
fn assert_share(grants: &[u64], per_second: u64, policy: &AnyPolicy) {
    let waited = grants.windows(2).rposition(|pair| pair[1] - pair[0] > 100 * US).expect("a wait");
    let (granted, all) = (waited as u64 + 1, grants[waited] * per_second / 1_000_000_000);
    assert!(granted * 200 >= all * 199, "{granted} of {all} by {policy:?}");
}

/// From 0.3 ms to 2 ms.
const LATES: [u64; 9] =
    [1_130 * US, 310 * US, 1_990 * US, 700 * US, 1_040 * US, 300 * US, 2_000 * US, 1_500 * US, 960 * US];

/// Rates per second, for how long to run, and how long each task works between its requests: a
/// request may come about every microsecond, or ten times as often at the highest rate.
const RATES: [(u64, u64, [u64; 2]); 4] = [
    (1_000, 500 * MS, [900, 1_100]),
    (10_000, 100 * MS, [900, 1_100]),
    (100_000, 30 * MS, [900, 1_100]),
    (1_000_000, 10 * MS, [90, 110]),
];

#[test]
fn any_number_of_tasks_gets_the_whole_rate_without_a_stock() {
    for (per_second, until, work) in RATES {
        for policy in without_stock(per_second) {
            for tasks in [1, 2, 10] {
                let (limiter, clock) = limiter(policy.clone(), &LATES);
                let grants = run(&|| one(&limiter), &clock, tasks, &work, until);
                assert_share(&grants, per_second, &policy);
                assert_bound(&grants, burst(&policy), per_second, 10 * MS);
            }
        }
    }
}

/// A reservation joins the line in a call of its own, and not when it is first polled.
#[test]
fn any_number_of_tasks_that_reserve_gets_the_whole_rate_without_a_stock() {
    for (per_second, until, work) in RATES {
        for policy in without_stock(per_second) {
            for tasks in [1, 2, 10] {
                let (limiter, clock) = limiter(policy.clone(), &LATES);
                let grants = run(&|| reserved(&limiter), &clock, tasks, &work, until);
                assert_share(&grants, per_second, &policy);
                assert_bound(&grants, burst(&policy), per_second, 10 * MS);
            }
        }
    }
}

#[test]
fn a_task_that_is_woken_late_gets_the_whole_rate() {
    // Not the timer is late, but the executor: the task sees its grant a millisecond after it was
    // made.
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(10_000)).max_burst(Duration::ZERO);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let (mut granted, mut wait) = (0, spawn(limiter.acquire()));
    while clock.now() < Nanos::new(500 * MS) {
        match wait.poll().is_ready() {
            true => {
                granted += 1;
                wait = spawn(limiter.acquire());
            }
            false => {
                while !wait.is_woken() {
                    clock.advance(Duration::from_micros(100));
                }
                clock.advance(Duration::from_millis(1));
            }
        }
    }
    assert!((4_975..=5_012).contains(&granted), "{granted}");
}

#[test]
fn without_a_catch_up_nothing_is_charged_as_of_an_earlier_time() {
    for policy in without_stock(10_000) {
        let (limiter, clock) = limiter(policy.clone(), &LATES);
        limiter.set_catch_up(Duration::ZERO);
        let grants = run(&|| one(&limiter), &clock, 3, &[US], 200 * MS);
        assert_bound(&grants, burst(&policy), 10_000, 0);
    }
}

/// A limiter of 10,000 per second without saved permits. Its last grant came 1 ms late.
fn late_by_1_ms() -> (Limiter, ManualClock) {
    let policy = SmoothBursty::new(Rate::per_second(10_000)).max_burst(Duration::ZERO);
    let (limiter, clock) = limiter(policy.into(), &[MS]);
    assert!(limiter.try_acquire().is_ok());
    let mut wait = spawn_pending(limiter.acquire_owned(1));
    clock.advance(Duration::from_nanos(MS + 100 * US));
    assert_ready_ok!(wait.poll());
    (limiter, clock)
}

fn take_all(limiter: &Limiter) -> usize {
    (0..1000).take_while(|_| limiter.try_acquire().is_ok()).count()
}

#[test]
fn requests_within_the_lateness_get_what_came_in_meanwhile() {
    let (limiter, _clock) = late_by_1_ms();
    // Due at 0.2 ms, 0.3 ms and so on until 1.1 ms, which is now.
    assert_eq!(take_all(&limiter), 10);
    assert_eq!(limiter.try_acquire().expect_err("all taken").retry_after(), Some(Duration::from_micros(100)));
}

#[test]
fn requests_beside_a_share_that_is_kept_get_what_came_in_meanwhile_too() {
    let (limiter, _clock) = late_by_1_ms();
    // So all requests take the lock, also while no waiter is in line.
    limiter.keep_for_priority(1, 1);
    let important = || limiter.try_acquire_many(Request::permits(1).priority(1));
    assert_eq!((0..1000).take_while(|_| important().is_ok()).count(), 10);
}

#[test]
fn a_refusal_that_is_seen_late_lets_no_request_be_charged_as_of_an_earlier_time() {
    let rate = Rate::per_second(1_000);
    let (limiter, clock) = limiter(SmoothBursty::new(rate).max_burst(Duration::ZERO).into(), &[0]);
    assert!(limiter.try_acquire().is_ok());
    let mut refused = spawn_pending(limiter.acquire_within(Duration::from_millis(2)));
    limiter.debit(5);
    limiter.refund(5);
    clock.advance(Duration::from_millis(5));
    assert!(assert_ready!(refused.poll()).is_err());
    assert_eq!(take_all(&limiter), 1);
}

#[test]
fn a_limiter_that_was_idle_for_longer_than_it_was_late_gives_no_burst() {
    for idle in [2 * MS, 3 * MS, 9 * MS, 11 * MS, 1000 * MS] {
        let (limiter, clock) = late_by_1_ms();
        clock.advance(Duration::from_nanos(idle));
        assert_eq!(take_all(&limiter), 1, "{idle}");
    }
}

#[test]
fn requests_below_the_rate_do_not_add_up_to_more_lateness() {
    let (limiter, clock) = late_by_1_ms();
    for _ in 0..100 {
        clock.advance(Duration::from_micros(200));
        assert!(limiter.try_acquire().is_ok());
    }
    // One for now, and ten for the millisecond.
    clock.advance(Duration::from_micros(100));
    assert!(take_all(&limiter) <= 11);
}

#[test]
fn nothing_is_charged_as_of_a_time_before_the_end_of_a_pause() {
    let (limiter, clock) = late_by_1_ms();
    limiter.pause_for(Duration::from_micros(500));
    clock.advance(Duration::from_micros(500));
    assert_eq!(take_all(&limiter), 0);
    clock.advance(Duration::from_micros(100));
    assert_eq!(take_all(&limiter), 1);
}

#[test]
fn a_limiter_that_is_reset_was_not_late() {
    let (limiter, _clock) = late_by_1_ms();
    limiter.reset();
    assert_eq!(take_all(&limiter), 1);
}

#[test]
fn a_retry_after_that_is_returned_while_the_limiter_is_late_is_exact() {
    let policies = without_stock(10_000);
    for policy in policies {
        let (limiter, clock) = limiter(policy, &[MS]);
        run(&|| one(&limiter), &clock, 1, &[US], 20 * MS);
        for _ in 0..100 {
            let Err(refusal) = limiter.try_acquire() else { continue };
            let after = refusal.retry_after().expect("later");
            clock.jump(after - Duration::from_nanos(1));
            assert!(limiter.try_acquire().is_err());
            clock.jump(Duration::from_nanos(1));
            assert!(limiter.try_acquire().is_ok());
            clock.advance(Duration::from_micros(50));
        }
    }
}

#[test]
fn a_composite_in_a_loop_gets_the_whole_rate() {
    for policy in without_stock(10_000) {
        let (limiter, clock) = limiter(policy.clone(), &LATES);
        let timer = limiter.clock().clone();
        let ample = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1_000_000), 1_000), timer);
        let all = AllOf::new("short", &limiter).with("ample", &ample);
        let acquire = || {
            let wait = all.acquire();
            Box::pin(async move {
                drop(wait.await.expect("a permit"));
            }) as Acquire
        };
        let reserve = || {
            let all = all.clone();
            Box::pin(async move {
                all.reserve(1).expect("a reservation").await.expect("a permit");
            }) as Acquire
        };
        let ways: [&dyn Fn() -> Acquire; 2] = [&acquire, &reserve];
        for (way, tasks) in ways.into_iter().flat_map(|way| [(way, 1), (way, 10)]) {
            let begin = clock.now().as_u64();
            let grants = run(way, &clock, tasks, &[US], begin + 200 * MS);
            let since: Vec<_> = grants.iter().map(|at| at - begin).collect();
            assert_share(&since, 10_000, &policy);
            assert_bound(&grants, burst(&policy), 10_000, 10 * MS);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is late by how much, and however long the tasks work between.
    #[test]
    fn the_bound_holds_in_every_span(
        policy in 0..5usize,
        per_second in prop_oneof![Just(1_000u64), Just(10_000), Just(30_000)],
        lates in vec(0..12 * MS, 1..8),
        work in vec(prop_oneof![4 => 500..5 * US, 1 => 0..3 * MS], 1..8),
        tasks in 1..12usize,
        catch_up in prop_oneof![Just(10 * MS), 0..20 * MS],
        reserves: bool,
    ) {
        let policy = without_stock(per_second)[policy].clone();
        let (limiter, clock) = limiter(policy.clone(), &lates);
        limiter.set_catch_up(Duration::from_nanos(catch_up));
        let acquire = || if reserves { reserved(&limiter) } else { one(&limiter) };
        let grants = run(&acquire, &clock, tasks, &work, 100 * MS);
        assert_bound(&grants, burst(&policy), per_second, catch_up);
    }
}
