//! Two policies as one, against the same two policies asked one by one, and against textbook
//! models.

use std::sync::Barrier;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{Both, Crowd, Standstill};
use tidegate::{
    AnyPolicy, Change, FixedWindow, Keep, LeakyBucket, Nanos, Policy, PolicyError, Rate, Refusal, SlidingLog,
    SmoothBursty, TokenBucket,
};

const SECOND: u64 = 1_000_000_000;

/// Each policy grants five permits at once at some time.
const KINDS: [&str; 13] = [
    "smooth_bursty 5/s",
    "smooth_bursty 3/s max_burst 4s start_full",
    "smooth_warming_up 5/s warm_up 2s",
    "token_bucket 5/s burst 5",
    "token_bucket 3/2s burst 12",
    "token_bucket 4/s burst 6 interval_refill",
    "leaky_bucket 5/s nodelay 2",
    "fixed_window 5/s",
    "fixed_window 20/5s from_first_grant",
    "sliding_window 7/s cells 3",
    "sliding_estimate 9/2s",
    "sliding_log 6/s",
    "unlimited",
];

type Two = Both<AnyPolicy, AnyPolicy>;

fn kind(which: usize) -> AnyPolicy {
    KINDS[which].parse().expect("a policy")
}

fn some_pair() -> impl Strategy<Value = [usize; 2]> {
    [0..KINDS.len(), 0..KINDS.len()]
}

fn nanos(nanos: u64) -> Nanos {
    Nanos::new(nanos)
}

/// Returns two policies that granted what they could of these requests, and the time after the last
/// request.
fn used(pair: [usize; 2], taken: Vec<(u32, u64)>) -> (Two, <Two as Policy>::State, Nanos) {
    let policy = kind(pair[0]).and(kind(pair[1]));
    let mut now = nanos(SECOND);
    let state = policy.start(now);
    for (n, pass) in taken {
        let _ = policy.try_acquire(&state, now, n);
        now = now.saturating_add(nanos(pass));
    }
    (policy, state, now)
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Pass(u64),
    Try(u32),
    Refund(u32),
    Debit(u32),
    /// Changes the rate of one of the policies.
    Rate(usize, u64),
    Reset,
    /// A pause of this length.
    Pause(u64, bool),
    /// Undoes all but this part of the last grant, if no other call has come since.
    Undo(u32),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => prop_oneof![0..SECOND / 2, 0..5 * SECOND].prop_map(Act::Pass),
        12 => (0u32..8).prop_map(Act::Try),
        1 => (1u32..5).prop_map(Act::Refund),
        1 => (1u32..5).prop_map(Act::Debit),
        1 => (0usize..2, 5u64..20).prop_map(|(part, rate)| Act::Rate(part, rate)),
        1 => Just(Act::Reset),
        1 => (0..3 * SECOND, any::<bool>()).prop_map(|(span, keeps_permits)| Act::Pause(span, keeps_permits)),
        3 => (0u32..3).prop_map(Act::Undo),
    ];
    vec(act, 1..60)
}

/// Two policies, each with its own state.
struct Apart {
    policies: [AnyPolicy; 2],
    states: [<AnyPolicy as Policy>::State; 2],
}

impl Apart {
    fn new(policies: [AnyPolicy; 2], now: Nanos) -> Apart {
        let states = [policies[0].start(now), policies[1].start(now)];
        Apart { policies, states }
    }

    fn each<T>(&self, ask: impl Fn(&AnyPolicy, &<AnyPolicy as Policy>::State) -> T) -> [T; 2] {
        [0, 1].map(|index| ask(&self.policies[index], &self.states[index]))
    }

    /// All or nothing: asks both policies, and takes permits if both would grant them.
    fn try_acquire(&self, now: Nanos, n: u32) -> Result<[<AnyPolicy as Policy>::Charge; 2], Refusal> {
        let limits = self.each(|policy, _| policy.check(n));
        let limit = limits.iter().filter_map(|check| match check {
            Err(Refusal::ExceedsLimit { limit, .. }) => Some(*limit),
            _ => None,
        });
        if let Some(limit) = limit.min() {
            return Err(Refusal::ExceedsLimit { requested: n, limit });
        }
        limits.into_iter().collect::<Result<Vec<()>, _>>()?;
        let [first, second] = self.each(|policy, state| policy.ready_at(state, now, 0, n));
        let due = first.max(second);
        if due > now {
            return Err(Refusal::Limited { retry_after: due.saturating_since(now) });
        }
        Ok(self.each(|policy, state| policy.try_acquire(state, now, n).expect("it is ready")))
    }
}

proptest! {
    /// Each decision, each predicted time and each status equals that of two policies that are
    /// asked one by one.
    #[test]
    fn two_policies_grant_what_each_of_them_would_grant(pair in some_pair(), acts in some_acts()) {
        let mut now = nanos(SECOND);
        let both: Two = kind(pair[0]).and(kind(pair[1]));
        let state = both.start(now);
        let apart = Apart::new(pair.map(kind), now);
        let mut last = None;
        for act in acts {
            let before = last.take();
            match act {
                Act::Pass(span) => {
                    now = now.saturating_add(nanos(span));
                    last = before;
                }
                Act::Try(n) => {
                    let (found, expected) = (both.try_acquire(&state, now, n), apart.try_acquire(now, n));
                    prop_assert_eq!(found.as_ref().map(drop), expected.as_ref().map(drop));
                    prop_assert!(both.check(n).is_ok() || found.is_err());
                    if let (Ok(charge), Ok([first, second])) = (&found, &expected) {
                        let left = both.left(&state, *charge, now);
                        let [one, other] = [(0, first), (1, second)].map(|(index, charge)| {
                            apart.policies[index].left(&apart.states[index], *charge, now)
                        });
                        prop_assert_eq!(left.available, one.available.min(other.available));
                        prop_assert_eq!(left.full_at, one.full_at.max(other.full_at));
                    }
                    last = found.ok().zip(expected.ok()).map(|charges| (charges, n));
                }
                Act::Refund(n) => {
                    both.refund(&state, now, n);
                    apart.each(|policy, state| policy.refund(state, now, n));
                }
                Act::Debit(n) => {
                    both.debit(&state, now, n);
                    apart.each(|policy, state| policy.debit(state, now, n));
                }
                Act::Rate(part, rate) => {
                    let change = Change::rate(Rate::per_second(rate));
                    both.change(&state, now, change.part(part))?;
                    apart.policies[part].change(&apart.states[part], now, change)?;
                }
                Act::Reset => {
                    both.change(&state, now, Change::reset())?;
                    apart.each(|policy, state| policy.change(state, now, Change::reset()).is_ok());
                }
                Act::Pause(span, keeps_permits) => {
                    let to = now.saturating_add(nanos(span));
                    let stop = match keeps_permits {
                        true => Standstill::keeping(now, to),
                        false => Standstill::emptying(now, to),
                    };
                    let forecast = both.forecast_pause(&state, stop);
                    let full_at = both.full_after_pause(&state, stop);
                    let done = both.pause(&state, stop);
                    let [first, second] = apart.each(|policy, state| policy.pause(state, stop));
                    prop_assert_eq!(done.is_some(), first.is_some() || second.is_some());
                    now = to;
                    let predicted = forecast.map(|mut forecast| both.predict(&state, &mut forecast, 3));
                    let due = both.ready_at(&state, now, 0, 3).max(now);
                    prop_assert_eq!(predicted, done.map(|_| due));
                    let full = both.status(&state, now).full_at.max(now);
                    prop_assert_eq!(full_at, done.map(|_| full));
                }
                Act::Undo(used) => if let Some(((charge, charges), n)) = before {
                    if let Some(charge) = both.unspent(charge, n, used) {
                        both.undo(&state, now, charge, u64::MAX);
                    }
                    for (index, charge) in charges.into_iter().enumerate() {
                        let policy = &apart.policies[index];
                        if let Some(charge) = policy.unspent(charge, n, used) {
                            policy.undo(&apart.states[index], now, charge, u64::MAX);
                        }
                    }
                },
            }
            let [first, second] = apart.each(|policy, state| policy.status(state, now));
            let found = both.status(&state, now);
            prop_assert_eq!(found.limit, first.limit.min(second.limit));
            prop_assert_eq!(found.available, first.available.min(second.available));
            prop_assert_eq!(found.next_at, first.next_at.max(second.next_at));
            prop_assert_eq!(found.full_at, first.full_at.max(second.full_at));
            let fresh = apart.each(|policy, state| policy.is_fresh(state, now));
            prop_assert_eq!(both.is_fresh(&state, now), fresh == [true; 2]);
        }
    }

    /// A textbook bucket and a textbook counter, in whole numbers.
    #[test]
    fn ten_per_second_and_a_hundred_per_minute(
        steps in vec((0u64..700, 1u64..13), 1..200),
    ) {
        let policy = TokenBucket::new(Rate::per_second(10), 10).and(FixedWindow::new(Rate::per_minute(100)));
        let state = policy.start(Nanos::ZERO);
        // Thousandths of a token, and the permits of each minute.
        let (mut tokens, mut now, mut minute, mut used) = (10_000u64, 0u64, 0, 0);
        for (ms, n) in steps {
            now += ms * 7;
            tokens = (tokens + ms * 7 * 10).min(10_000);
            if now / 60_000 > minute {
                (minute, used) = (now / 60_000, 0);
            }
            let grants = n <= 10 && tokens >= n * 1000 && used + n <= 100;
            let found = policy.try_acquire(&state, nanos(now * 1_000_000), u32::try_from(n)?);
            prop_assert_eq!(found.is_ok(), grants, "{} at {} ms: {:?}", n, now, found);
            if grants {
                tokens -= n * 1000;
                used += n;
            }
        }
    }

    /// The times predicted for a queue are the times at which the requests are granted, one after
    /// another.
    #[test]
    fn predicted_times_are_the_times_of_the_grants(
        pair in some_pair(), taken in vec((1u32..6, 0..SECOND), 0..8), sizes in vec(1u32..6, 1..12),
    ) {
        let (policy, state, mut now) = used(pair, taken);
        let mut forecast = policy.forecast(&state, now);
        let due: Vec<_> = sizes.iter().map(|n| policy.predict(&state, &mut forecast, *n)).collect();
        for (n, due) in sizes.into_iter().zip(due) {
            let before = nanos(due.as_u64().saturating_sub(1));
            if before > now {
                prop_assert!(policy.try_acquire(&state, before, n).is_err(), "{} too late", n);
            }
            now = now.max(due);
            prop_assert!(policy.try_acquire(&state, now, n).is_ok(), "{} too early", n);
        }
    }

    /// The time predicted behind a crowd of requests is not too early, although only the crowd's
    /// sums are known.
    #[test]
    fn a_time_behind_a_crowd_is_never_too_early(
        pair in some_pair(), taken in vec((1u32..6, 0..SECOND), 0..8), sizes in vec(1u32..6, 1..40),
        next in vec(1u32..6, 1..4),
    ) {
        let (policy, state, now) = used(pair, taken);
        let mut exact = policy.forecast(&state, now);
        let mut bound = policy.forecast(&state, now);
        let (mut permits, mut largest) = (0, 0);
        for n in &sizes {
            policy.predict(&state, &mut exact, *n);
            permits += u64::from(*n);
            largest = largest.max(*n);
        }
        let crowd = Crowd::new(sizes.len() as u64, permits, permits, largest);
        policy.predict_many(&state, &mut bound, &crowd);
        for n in next {
            let (exact, bound) = (policy.predict(&state, &mut exact, n), policy.predict(&state, &mut bound, n));
            prop_assert!(bound >= exact, "predicted {:?}, and it is {:?}", bound, exact);
        }
    }
}

#[test]
fn three_policies_are_one_of_two_and_another() -> Result<(), Box<dyn std::error::Error>> {
    let second = SmoothBursty::new(Rate::per_second(10)).start_full();
    let policy = second
        .and(FixedWindow::new(Rate::per_minute(50)))
        .and(SlidingLog::new(Rate::per_hour(60)).with_capacity(100)?);
    assert_eq!(<Both<Both<SmoothBursty, FixedWindow>, SlidingLog> as Policy>::PARTS, 3);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, Nanos::ZERO, 45)?;
    let at = |seconds| nanos(seconds * SECOND);
    assert_eq!(
        policy.try_acquire(&state, at(10), 6).err(),
        Some(Refusal::Limited { retry_after: at(50) }),
        "the minute"
    );
    policy.try_acquire(&state, at(60), 10)?;
    assert_eq!(
        policy.try_acquire(&state, at(120), 6).err(),
        Some(Refusal::Limited { retry_after: at(3480) }),
        "the hour"
    );
    assert_eq!(
        policy.try_acquire(&state, at(120), 51).err(),
        Some(Refusal::ExceedsLimit { requested: 51, limit: 50 })
    );
    policy.change(&state, at(120), Change::rate(Rate::per_hour(100)).part(2))?;
    policy.try_acquire(&state, at(120), 6)?;
    assert_eq!(policy.second().rate(), Rate::per_hour(100));
    policy.change(&state, at(120), Change::rate(Rate::per_minute(7)).part(1))?;
    assert_eq!(policy.first().second().rate(), Rate::per_minute(7));
    let refused = policy.change(&state, at(120), Change::reset().part(3));
    assert_eq!(refused, Err(PolicyError::NoPart { part: 3, parts: 3 }));
    let told = refused.expect_err("only three parts").to_string();
    assert_eq!(told, "part 3 is out of range, the policy has 3 parts (0 to 2)");
    Ok(())
}

/// A single policy refuses a change of a second part.
#[test]
fn a_change_of_a_part_that_is_not_there_is_an_error() {
    for text in KINDS {
        let policy: AnyPolicy = text.parse().expect("a policy");
        let state = policy.start(Nanos::ZERO);
        let change = Change::rate(Rate::per_second(9));
        assert!(policy.change(&state, Nanos::ZERO, change.part(0)).is_ok(), "{text}");
        let refused = policy.change(&state, Nanos::ZERO, change.part(1));
        assert_eq!(refused, Err(PolicyError::NoPart { part: 1, parts: 1 }), "{text}");
    }
}

/// A change that names no part applies to the first policy, and a burst is refused if that policy
/// has none.
#[test]
fn a_change_is_for_the_first_policy() -> Result<(), PolicyError> {
    let policy = TokenBucket::new(Rate::per_second(1), 10).and(FixedWindow::new(Rate::per_minute(20)));
    let state = policy.start(Nanos::ZERO);
    policy.change(&state, Nanos::ZERO, Change::only_burst(15))?;
    assert_eq!(policy.status(&state, Nanos::ZERO).limit, 15);
    let refused = policy.change(&state, Nanos::ZERO, Change::only_burst(5).part(1));
    let error = PolicyError::NoBurst { burst: 5, policy: "fixed_window" };
    assert_eq!(refused, Err(error));
    let told = "a burst of 5 was given to fixed_window, which has no burst in permits";
    assert_eq!(error.to_string(), told);
    policy.set_rate(&state, Nanos::ZERO, Rate::per_second(2));
    assert_eq!((policy.rate(), policy.second().rate()), (Rate::per_second(2), Rate::per_minute(20)));
    let refilled = Change::default().keep(Keep::Nothing).part(0);
    policy.try_acquire(&state, Nanos::ZERO, 10).expect("available");
    policy.change(&state, Nanos::ZERO, refilled)?;
    assert_eq!(policy.status(&state, Nanos::ZERO).available, 10, "the minute has ten left");
    Ok(())
}

/// The maximum wait is the shorter of the two, and late grants are made up for if both policies do
/// that.
#[test]
fn the_stricter_of_the_two_counts() {
    let leaky = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(3));
    assert_eq!(leaky.clone().and(SmoothBursty::new(Rate::per_second(1))).max_wait(), Duration::from_secs(3));
    assert!(leaky.clone().and(SmoothBursty::new(Rate::per_second(1))).catches_up());
    assert!(!leaky.clone().and(SlidingLog::new(Rate::per_second(1))).catches_up());
    assert!(!SlidingLog::new(Rate::per_second(1)).and(leaky).catches_up());
}

/// Many threads take permits at one time. Afterwards each policy lacks what was granted, and no
/// more: a refused request leaves no trace in either policy.
#[test]
fn refused_requests_leave_no_trace_among_threads() {
    let pairs = [
        ["token_bucket 1/h burst 1000", "token_bucket 1/h burst 400"],
        ["token_bucket 1/h burst 400", "token_bucket 1/h burst 1000"],
        ["token_bucket 1/h burst 1000", "fixed_window 400/h"],
        ["fixed_window 1000/h", "token_bucket 1/h burst 400"],
        ["sliding_window 1000/h cells 4", "sliding_estimate 400/h"],
        ["sliding_log 1000/h", "token_bucket 1/h burst 400"],
    ];
    for texts in pairs {
        for _ in 0..20 {
            let [first, second] = texts.map(|text| text.parse::<AnyPolicy>().expect("a policy"));
            let policy = first.and(second);
            let state = policy.start(Nanos::ZERO);
            let (start, at) = (Barrier::new(4), nanos(SECOND));
            let granted: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..5u32)
                    .map(|n| {
                        let (policy, state, start) = (&policy, &state, &start);
                        scope.spawn(move || {
                            start.wait();
                            let takes = (0..300).filter(|_| policy.try_acquire(state, at, n).is_ok());
                            takes.count() as u64 * u64::from(n)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert!(granted <= 400, "{texts:?} granted {granted}");
            let mut rest = 0;
            while policy.try_acquire(&state, at, 1).is_ok() {
                rest += 1;
            }
            assert_eq!(granted + rest, 400, "{texts:?}");
            // The larger policy still has the difference.
            let larger = usize::from(texts[0].contains("400"));
            let mut left = 0;
            let rate = if larger == 0 { policy.second().rate() } else { policy.first().rate() };
            let smaller = Change::rate(rate).keep(Keep::Nothing).part(1 - larger);
            for _ in 0..4 {
                policy.change(&state, at, smaller).expect("as it was");
                while policy.try_acquire(&state, at, 1).is_ok() {
                    left += 1;
                }
            }
            assert_eq!(left, 600, "{texts:?}");
        }
    }
}
