//! A limiter of two policies: undone grants, predicted times and changes, all on the manual clock.
//! The model asks the two policies one by one, and replays the history without the undone grants.

use std::time::Duration;

use crate::support::pairs::{EXACT, KINDS, Two, kind};
use crate::support::{MS, estimate, waiting};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{Both, PolicyStatus};
use tidegate::{
    AllOf, AnyPolicy, Change, Clock, FixedWindow, Grant, ManualClock, Nanos, Policy, Rate, RateLimiter,
    Refusal, Request, Reservation, SlidingLog, Status, TokenBucket,
};
use tokio_test::{assert_pending, assert_ready_eq};

type Limiter = RateLimiter<Two, ManualClock>;

const SECOND: Duration = Duration::from_secs(1);

fn limiter(pair: [usize; 2]) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(kind(pair[0]).and(kind(pair[1])), clock.clone()), clock)
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Pass(u64),
    Estimate(u32),
    /// Settles the estimate with this index at this many permits.
    Settle(usize, u32),
    /// Waits in the queue until the permits are available, and does not poll.
    Reserve(u32),
    /// Drops a wait whose grant was not seen.
    Drop(usize),
    /// A request to this limiter and to another one that has no permits.
    AllOf(u32),
    /// A plain request, without the lock.
    Take(u32),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let n = || 1u32..6;
    let act = prop_oneof![
        4 => prop_oneof![0..1_000_000_000u64, Just(200_000_000u64), Just(1_000_000_000u64)].prop_map(Act::Pass),
        6 => n().prop_map(Act::Estimate),
        4 => (any::<usize>(), 0u32..6).prop_map(|(index, used)| Act::Settle(index, used)),
        2 => n().prop_map(Act::Reserve),
        2 => any::<usize>().prop_map(Act::Drop),
        1 => n().prop_map(Act::AllOf),
        2 => n().prop_map(Act::Take),
    ];
    vec(act, 1..50)
}

/// A grant that may still be undone, and its index in the history.
enum Open {
    Estimate(Reservation<Two, ManualClock>, usize),
    Reservation(Reservation<Two, ManualClock>, usize),
}

struct World {
    pair: [usize; 2],
    limiter: Limiter,
    clock: ManualClock,
    all: AllOf<ManualClock>,
    /// The time of each grant, and its permits.
    history: Vec<(Nanos, u32)>,
    open: Vec<Open>,
}

impl World {
    fn new(pair: [usize; 2]) -> World {
        let (limiter, clock) = limiter(pair);
        let nothing = RateLimiter::with_clock(tidegate::DenyAll, clock.clone());
        let all = AllOf::new("limiter", &limiter).with("nothing", &nothing);
        World { pair, limiter, clock, all, history: Vec::new(), open: Vec::new() }
    }

    fn note(&mut self, n: u32) -> usize {
        self.history.push((self.clock.now(), n));
        self.history.len() - 1
    }

    fn act(&mut self, act: Act) {
        let count = self.open.len().max(1);
        match act {
            Act::Pass(nanos) => self.clock.advance(Duration::from_nanos(nanos)),
            Act::Take(n) => {
                if self.limiter.try_acquire_many(n).is_ok() {
                    self.note(n);
                }
            }
            Act::Estimate(n) => {
                if let Ok(estimate) = estimate(&self.limiter, n) {
                    let noted = self.note(n);
                    self.open.push(Open::Estimate(estimate, noted));
                }
            }
            Act::Settle(index, used) => {
                if let Some(Open::Estimate(..)) = self.open.get(index % count)
                    && let Open::Estimate(estimate, noted) = self.open.swap_remove(index % count)
                {
                    let used = used.min(estimate.permits());
                    estimate.settle(used);
                    self.history[noted].1 = used;
                }
            }
            Act::Reserve(n) => {
                if let Ok(reservation) = self.limiter.reserve(n) {
                    self.clock.advance(reservation.due_in());
                    assert_eq!(reservation.due_in(), Duration::ZERO);
                    let noted = self.note(n);
                    self.open.push(Open::Reservation(reservation, noted));
                }
            }
            Act::Drop(index) => {
                if let Some(Open::Reservation(..)) = self.open.get(index % count)
                    && let Open::Reservation(reservation, noted) = self.open.swap_remove(index % count)
                {
                    drop(reservation);
                    self.history[noted].1 = 0;
                }
            }
            Act::AllOf(n) => assert!(self.all.try_acquire_many([("limiter", n)]).is_err()),
        }
    }

    /// Returns what a replay of the history leaves of each of the two policies.
    fn replay(&self) -> [PolicyStatus; 2] {
        let now = self.clock.now();
        self.pair.map(|which| {
            let policy = kind(which);
            let state = policy.start(Nanos::ZERO);
            for (at, n) in &self.history {
                // Without the undone grants, all others are granted as well; a debit needs no
                // permits.
                policy.debit(&state, *at, *n);
            }
            policy.status(&state, now)
        })
    }

    fn found(&self) -> (u64, Nanos) {
        let Status { available, full_in, .. } = self.limiter.status();
        (available, self.clock.now().saturating_add(Nanos::from_duration(full_in)))
    }

    fn expected(&self) -> (u64, Nanos) {
        let [first, second] = self.replay();
        (first.available.min(second.available), first.full_at.max(second.full_at).max(self.clock.now()))
    }
}

proptest! {
    /// Whatever is undone, in whatever order, with requests in between: the limiter is as full as
    /// if only the remaining grants had been made. No permit is invented, and none is lost.
    #[test]
    fn undone_grants_leave_no_trace_in_any_of_the_two(
        first in 0..EXACT, second in 0..EXACT, acts in some_acts(),
    ) {
        let mut world = World::new([first, second]);
        for act in acts {
            // The queue does not see a plain request: it knows only the least room.
            if matches!(act, Act::Take(_)) {
                continue;
            }
            world.act(act);
            prop_assert_eq!(world.found(), world.expected(), "after {:?}", act);
        }
    }

    /// Including plain requests, which the queue does not see, no permit is invented.
    #[test]
    fn undone_grants_give_back_no_more_than_a_replay_without_them_has(
        first in 0..EXACT, second in 0..EXACT, acts in some_acts(),
    ) {
        let mut world = World::new([first, second]);
        for act in acts {
            world.act(act);
            let (found, expected) = (world.found(), world.expected());
            prop_assert!(found.0 <= expected.0 && found.1 >= expected.1, "{:?} {:?} {:?}", act, found, expected);
        }
    }

    /// Each request in a queue of mixed sizes is served at its predicted time, and not a nanosecond
    /// earlier. The same holds for a new request that was refused with a time.
    #[test]
    fn predicted_times_are_met_to_the_nanosecond(
        first in 0..KINDS.len(), second in 0..KINDS.len(), before in vec((1u32..6, 0u64..700), 0..6),
        sizes in vec(1u32..6, 1..20), dropped in any::<usize>(), n in 1u32..6,
    ) {
        let (limiter, clock) = limiter([first, second]);
        for (n, ms) in before {
            limiter.try_acquire_many(n).ok();
            clock.advance(Duration::from_millis(ms));
        }
        let mut line: Vec<_> = sizes.iter().map(|n| limiter.reserve(*n).expect("it fits")).collect();
        drop(line.remove(dropped % line.len()));
        let now = clock.now();
        let due: Vec<_> =
            line.iter().map(|reservation| now.saturating_add(reservation.due_in().into())).collect();
        let newcomer = limiter.try_acquire_many(n).err().and_then(Refusal::retry_after);
        let last = due.last().copied().unwrap_or(now);
        for (mut reservation, due) in line.into_iter().zip(due) {
            let span = |until: Nanos| until.saturating_since(clock.now()).as_duration();
            if due > clock.now() {
                clock.advance(span(Nanos::new(due.as_u64() - 1)));
                prop_assert!(!reservation.claim(), "due at {}, and it is {}", due, clock.now());
                clock.advance(span(due));
            }
            prop_assert!(reservation.claim(), "due at {}", due);
        }
        if let Some(retry_after) = newcomer {
            let due = now.saturating_add(retry_after.into());
            prop_assert!(due >= last);
            let span = |until: Nanos| until.saturating_since(clock.now()).as_duration();
            if due > clock.now() {
                clock.advance(span(Nanos::new(due.as_u64() - 1)));
                prop_assert!(limiter.try_acquire_many(n).is_err());
                clock.advance(span(due));
            }
            prop_assert!(limiter.try_acquire_many(n).is_ok());
        }
    }
}

fn ten_and_hundred() -> (RateLimiter<Both<TokenBucket, FixedWindow>, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 10).and(FixedWindow::new(Rate::per_minute(100)));
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

/// Waiters stay in the queue whichever of the two policies is changed, and their times follow the
/// change.
#[test]
fn waiters_follow_a_change_of_any_of_the_two() -> Result<(), Box<dyn std::error::Error>> {
    let (limiter, clock) = ten_and_hundred();
    limiter.try_acquire_many(10)?;
    let mut waiters: Vec<_> = (0..2).map(|_| waiting(&limiter)).collect();
    limiter.set_rate(Rate::per_second(2));
    clock.advance(500 * MS);
    assert_ready_eq!(waiters[0].poll().map_ok(Grant::waited), Ok(500 * MS));
    assert_pending!(waiters[1].poll());
    // The minute has no permit left.
    limiter.change(Change::rate(Rate::per_minute(5)).part(1))?;
    clock.advance(10 * SECOND);
    assert_pending!(waiters[1].poll());
    assert_eq!(
        limiter.try_acquire().err().and_then(Refusal::retry_after),
        Some(Duration::from_millis(49_500))
    );
    limiter.change(Change::rate(Rate::per_minute(12)).part(1))?;
    assert_ready_eq!(waiters[1].poll().map_ok(Grant::waited), Ok(Duration::from_millis(10_500)));
    assert!(limiter.change(Change::rate(Rate::ZERO).part(2)).is_err());
    assert_eq!(limiter.status().limit, 10);
    limiter.reset();
    assert_eq!(limiter.status().available, 10, "both are full");
    Ok(())
}

/// A change of one policy does not make the grants of the other policy final.
#[test]
fn an_estimate_outlives_a_change_of_the_other_policy() -> Result<(), Box<dyn std::error::Error>> {
    let (limiter, _) = ten_and_hundred();
    let reservation = estimate(&limiter, 10)?;
    limiter.change(Change::rate(Rate::per_minute(50)).part(1))?;
    reservation.settle(4);
    assert_eq!(limiter.status().available, 6, "of the second");
    Ok(())
}

#[test]
fn a_refund_a_debit_and_a_share_are_of_both() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 20).and(SlidingLog::new(Rate::per_minute(15)));
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    limiter.debit(15);
    assert_eq!(limiter.status().available, 0);
    assert_eq!(limiter.try_acquire().err().and_then(Refusal::retry_after), Some(Duration::from_secs(60)));
    limiter.refund(6);
    assert_eq!(limiter.status().available, 6);
    limiter.keep_for_priority(4, 1);
    assert!(limiter.try_acquire_many(3).is_err());
    limiter.try_acquire_many(2)?;
    assert!(limiter.try_acquire().is_err());
    limiter.try_acquire_many(Request::permits(4).priority(1))?;
    Ok(())
}

/// Threads take, reserve and settle concurrently. In the end both policies lack the used permits.
#[test]
fn threads_leave_what_they_used_and_no_more() {
    let pairs = [
        ["token_bucket 1/h burst 1000", "token_bucket 1/h burst 400"],
        ["token_bucket 1/h burst 400", "fixed_window 1000/h"],
        ["sliding_log 1000/h", "token_bucket 1/h burst 400"],
    ];
    for texts in pairs {
        for _ in 0..10 {
            let [first, second] = texts.map(|text| text.parse::<AnyPolicy>().expect("a policy"));
            let limiter = RateLimiter::with_clock(first.and(second), ManualClock::new());
            let limit = limiter.status().limit;
            let used: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..4u32)
                    .map(|n| {
                        let limiter = limiter.clone();
                        scope.spawn(move || {
                            let mut used = 0;
                            for round in 0..200 {
                                if round % 10 < 2 {
                                    if let Ok(reservation) = estimate(&limiter, n + 3) {
                                        reservation.settle(n);
                                        used += u64::from(n);
                                    }
                                } else if limiter.try_acquire_many(n).is_ok() {
                                    used += u64::from(n);
                                }
                            }
                            used
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert_eq!(limiter.status().available + used, limit, "{texts:?}");
        }
    }
}
