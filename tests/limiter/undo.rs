//! Undone grants. The limiter never has more permits than a replay of the history without these
//! grants, and not fewer where the queue knows every request. All tests use the manual clock.

use std::error::Error;
use std::time::Duration;

use crate::support::MS;
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change, DenyAll, PolicyConfig};
use tidegate::{
    AllOf, AllReservation, Clock, LeakyBucket, ManualClock, Rate, RateLimiter, Refusal, Reservation,
    SmoothBursty, TokenBucket,
};

type Limiter = RateLimiter<AnyPolicy, ManualClock>;

fn limiter(policy: impl Into<AnyPolicy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(policy.into(), clock.clone()), clock)
}

/// Returns how many single permits are available now.
fn take_all(limiter: &Limiter) -> u32 {
    let mut taken = 0;
    while limiter.try_acquire().is_ok() {
        taken += 1;
    }
    taken
}

fn estimates(
    limiter: &Limiter,
    count: u32,
    permits: u32,
) -> Result<Vec<Reservation<AnyPolicy, ManualClock>>, Refusal> {
    (0..count).map(|_| crate::support::estimate(limiter, permits)).collect()
}

fn bursty(rate: u64, burst: u64) -> AnyPolicy {
    let rate_ = Rate::per_second(rate);
    SmoothBursty::new(rate_).max_burst(Duration::from_millis(burst * 1000 / rate)).start_full().into()
}

/// Bug: in a log, a grant from before a reset gave back permits of a later grant at the same time.
#[test]
fn nothing_comes_back_from_before_a_reset() -> Result<(), Box<dyn Error>> {
    for line in [
        "token_bucket 5/s burst 5",
        "token_bucket 5/s burst 5 interval_refill",
        "leaky_bucket 5/s nodelay 4",
        "smooth_bursty 5/s max_burst 800ms start_full",
        "fixed_window 5/s",
        "fixed_window 5/s from_first_grant",
        "sliding_window 5/s cells 5",
        "sliding_estimate 5/s",
        "sliding_log 5/s",
    ] {
        let (limiter, clock) = limiter(line.parse::<AnyPolicy>()?);
        clock.advance(100 * MS);
        let before = crate::support::estimate(&limiter, 3)?;
        assert_eq!(take_all(&limiter), 2, "{line}");
        limiter.reset();
        let after = crate::support::estimate(&limiter, 3)?;
        assert_eq!(take_all(&limiter), 2, "{line}");
        before.settle(0);
        assert_eq!(take_all(&limiter), 0, "{line}");
        after.settle(1);
        assert_eq!(take_all(&limiter), 2, "{line}");
    }
    Ok(())
}

/// Bug: each of the small estimates gave back the room that all of them saw: 1,495 permits passed
/// at one time, 149,999 with the burst 100,000.
#[test]
fn many_estimates_share_the_room_that_was_left() -> Result<(), Refusal> {
    for (rate, burst, large, count, each) in [
        (1000, 1000, 500, 100, 5),
        (1000, 1000, 100, 9, 100),
        (250, 3000, 2500, 50, 9),
        (1000, 100_000, 50_000, 9999, 5),
    ] {
        for policy in
            [AnyPolicy::from(TokenBucket::new(Rate::per_second(rate), burst)), bursty(rate, burst.into())]
        {
            let on_credit = u32::from(matches!(policy.config(), PolicyConfig::SmoothBursty { .. }));
            let (limiter, clock) = limiter(policy);
            let first = crate::support::estimate(&limiter, large)?;
            let small = estimates(&limiter, count, each)?;
            first.settle(0);
            // All but five permits accrue, and are taken.
            let there = u32::try_from(limiter.status().available).unwrap_or(0);
            let wanted = burst - 5;
            clock.advance(
                Duration::from_secs(wanted.saturating_sub(there).into()) / u32::try_from(rate).unwrap_or(1),
            );
            limiter.try_acquire_many(wanted)?;
            let passed = wanted;
            small.into_iter().for_each(|estimate| estimate.settle(0));
            let passed = passed + take_all(&limiter);
            assert!(passed <= burst + on_credit, "{passed} of {burst} at {rate}/s");
        }
    }
    Ok(())
}

/// The same for granted waits that are dropped, and for a limit among several.
#[test]
fn an_estimate_of_several_limiters_shares_the_room_too() {
    let (requests, clock) = limiter(TokenBucket::new(Rate::per_second(1000), 1000));
    let (others, _) = limiter(TokenBucket::new(Rate::per_second(1_000_000), 1_000_000));
    let all = AllOf::new("requests", &requests).with("others", &others);
    let first = crate::support::estimate_of_all(&all, [("requests", 500)]).expect("available");
    let small: Vec<_> = (0..100)
        .map(|_| crate::support::estimate_of_all(&all, [("requests", 5)]).expect("available"))
        .collect();
    first.settle_unused();
    clock.advance(495 * MS);
    requests.try_acquire_many(995).expect("accrued");
    small.into_iter().for_each(AllReservation::settle_unused);
    let passed = 995 + take_all(&requests);
    assert!(passed <= 1000, "{passed}");
}

/// Bug: a bucket gave back nothing of a call that took longer than the bucket takes to fill,
/// although the bucket was never near full.
#[test]
fn a_bucket_that_is_never_near_full_gives_back_all() -> Result<(), Refusal> {
    for policy in [
        AnyPolicy::from(TokenBucket::new(Rate::per_second(1000), 100)),
        bursty(1000, 100),
        LeakyBucket::new(Rate::per_second(1000)).nodelay(99).into(),
    ] {
        let on_credit = u64::from(matches!(policy.config(), PolicyConfig::SmoothBursty { .. }));
        let (limiter, clock) = limiter(policy);
        let long = crate::support::estimate(&limiter, 50)?;
        for _ in 0..100 {
            drop(crate::support::estimate(&limiter, 10)?);
            clock.advance(10 * MS);
        }
        assert_eq!(limiter.status().available, 50 + on_credit);
        long.settle(0);
        assert_eq!(limiter.status().available, 100 + on_credit);
    }
    Ok(())
}

// Comparison with a replay of the history

const SECOND: i128 = 1_000_000_000;

/// The events of a limiter.
#[derive(Clone, Copy, Debug)]
enum Event {
    Take(u32),
    Refund(u32),
    Rate(u64, u32),
    Reset,
}

/// A bucket, or a `SmoothBursty`, in exact integers: stored permits that accrue with time, up to a
/// maximum.
#[derive(Clone, Copy, Debug)]
struct Model {
    bursty: bool,
    /// Permits per second; each takes a whole number of nanoseconds.
    rate: i128,
    /// In permits; for `SmoothBursty` in nanoseconds.
    burst: i128,
    /// In billionths of a permit; for `SmoothBursty` in nanoseconds.
    stock: i128,
    at: i128,
}

impl Model {
    fn new(bursty: bool, rate: u64, burst: u32) -> Model {
        let burst = if bursty { i128::from(burst) * SECOND / i128::from(rate) } else { burst.into() };
        let model = Model { bursty, rate: rate.into(), burst, stock: 0, at: 0 };
        Model { stock: model.full(), ..model }
    }

    fn full(&self) -> i128 {
        if self.bursty { self.burst } else { self.burst * SECOND }
    }

    fn flow(&self) -> i128 {
        if self.bursty { 1 } else { self.rate }
    }

    fn price(&self, n: u32) -> i128 {
        i128::from(n) * if self.bursty { SECOND / self.rate } else { SECOND }
    }

    fn go_to(&mut self, at: i128) {
        self.stock = (self.stock + (at - self.at) * self.flow()).min(self.full());
        self.at = at;
    }

    fn meet(&mut self, at: i128, event: Event) {
        self.go_to(at);
        match event {
            Event::Take(n) => self.stock -= self.price(n),
            Event::Refund(n) => self.stock = (self.stock + self.price(n)).min(self.full()),
            Event::Rate(rate, burst) => {
                self.rate = rate.into();
                self.burst = if self.bursty { self.burst } else { burst.into() };
                self.stock = self.stock.min(self.full());
            }
            Event::Reset => self.stock = self.full(),
        }
    }

    /// Returns how long until it is full, in nanoseconds, rounded up.
    fn full_in(&self) -> i128 {
        let missing = self.full() - self.stock;
        missing / self.flow() + i128::from(missing % self.flow() > 0)
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Pass(u64),
    /// A plain request, without the lock.
    Take(u32),
    Estimate(u32),
    /// Settles the estimate with this index at this many permits.
    Settle(usize, u32),
    /// Waits in the queue until the permits are available, and does not poll.
    Reserve(u32),
    /// Drops a wait whose grant was not seen.
    Drop(usize),
    /// A request to this limiter and to another one that has no permits.
    AllOf(u32),
    Refund(u32),
    Debit(u32),
    Rate(u64, u32),
    Reset,
}

/// A grant that may still be undone, and its index in the history.
enum Open {
    Estimate(Reservation<AnyPolicy, ManualClock>, usize),
    Reservation(Reservation<AnyPolicy, ManualClock>, usize),
}

struct World {
    limiter: Limiter,
    clock: ManualClock,
    all: AllOf<ManualClock>,
    first: Model,
    history: Vec<(i128, Event)>,
    open: Vec<Open>,
}

impl World {
    fn new(bursty: bool, rate: u64, burst: u32) -> World {
        let clock = ManualClock::new();
        let first = Model::new(bursty, rate, burst);
        let policy: AnyPolicy = if bursty {
            let max_burst = Duration::from_nanos(u64::try_from(first.burst).unwrap_or(0));
            SmoothBursty::new(Rate::per_second(rate)).max_burst(max_burst).start_full().into()
        } else {
            TokenBucket::new(Rate::per_second(rate), burst).into()
        };
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        let nothing = RateLimiter::with_clock(AnyPolicy::from(DenyAll), clock.clone());
        let all = AllOf::new("limiter", &limiter).with("nothing", &nothing);
        World { limiter, clock, all, first, history: Vec::new(), open: Vec::new() }
    }

    fn now(&self) -> i128 {
        self.clock.now().as_u64().into()
    }

    fn note(&mut self, event: Event) -> usize {
        self.history.push((self.now(), event));
        self.history.len() - 1
    }

    /// Returns the state that a replay of the history leaves.
    fn replay(&self) -> Model {
        let mut model = self.first;
        self.history.iter().for_each(|(at, event)| model.meet(*at, *event));
        model.go_to(self.now());
        model
    }

    fn act(&mut self, act: Act) {
        let count = self.open.len().max(1);
        match act {
            Act::Pass(nanos) => self.clock.advance(Duration::from_nanos(nanos)),
            Act::Take(n) => {
                if self.limiter.try_acquire_many(n).is_ok() {
                    self.note(Event::Take(n));
                }
            }
            Act::Estimate(n) => {
                if let Ok(estimate) = crate::support::estimate(&self.limiter, n) {
                    let noted = self.note(Event::Take(n));
                    self.open.push(Open::Estimate(estimate, noted));
                }
            }
            Act::Settle(index, used) => {
                if let Some(Open::Estimate(..)) = self.open.get(index % count)
                    && let Open::Estimate(estimate, noted) = self.open.swap_remove(index % count)
                {
                    let n = estimate.permits();
                    estimate.settle(used);
                    self.history[noted].1 = Event::Take(used.min(n));
                    if used > n {
                        self.note(Event::Take(used - n));
                    }
                }
            }
            Act::Reserve(n) => {
                if let Ok(reservation) = self.limiter.reserve(n) {
                    let due_in = reservation.due_in();
                    // A debt may take too long for a test, and a large request may be too large for
                    // the bucket.
                    if due_in < Duration::from_secs(1000) {
                        self.clock.advance(due_in);
                        assert_eq!(reservation.due_in(), Duration::ZERO);
                        let noted = self.note(Event::Take(n));
                        self.open.push(Open::Reservation(reservation, noted));
                    }
                }
            }
            Act::Drop(index) => {
                if let Some(Open::Reservation(..)) = self.open.get(index % count)
                    && let Open::Reservation(reservation, noted) = self.open.swap_remove(index % count)
                {
                    drop(reservation);
                    self.history[noted].1 = Event::Take(0);
                }
            }
            Act::AllOf(n) => assert!(self.all.try_acquire_many([("limiter", n)]).is_err()),
            Act::Refund(n) => {
                self.limiter.refund(n);
                self.note(Event::Refund(n));
            }
            Act::Debit(n) => {
                self.limiter.debit(n);
                self.note(Event::Take(n));
            }
            Act::Rate(rate, burst) => {
                let change = Change::rate(Rate::per_second(rate));
                let change = if self.first.bursty { change } else { change.burst(burst) };
                assert!(self.limiter.change(change).is_ok());
                self.note(Event::Rate(rate, burst));
            }
            Act::Reset => {
                self.limiter.reset();
                self.note(Event::Reset);
            }
        }
    }

    fn full_in(&self) -> i128 {
        i128::try_from(self.limiter.status().full_in.as_nanos()).unwrap_or(i128::MAX)
    }
}

fn some_rate() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(2), Just(5), Just(10), Just(100), Just(1000)]
}

/// Acts that the queue sees, so that nothing must be estimated.
fn seen_act() -> impl Strategy<Value = Act> {
    let n = || prop_oneof![3 => 1u32..8, 1 => 1u32..60];
    prop_oneof![
        3 => prop_oneof![0u64..3000, 0..2_000_000_000u64, Just(1_000_000_000u64)].prop_map(Act::Pass),
        6 => n().prop_map(Act::Estimate),
        4 => (any::<usize>(), 0u32..60).prop_map(|(index, used)| Act::Settle(index, used)),
        2 => n().prop_map(Act::Reserve),
        2 => any::<usize>().prop_map(Act::Drop),
        1 => n().prop_map(Act::AllOf),
        1 => n().prop_map(Act::Refund),
    ]
}

fn some_act() -> impl Strategy<Value = Act> {
    let n = || prop_oneof![3 => 1u32..8, 1 => 1u32..60];
    prop_oneof![
        8 => seen_act(),
        4 => n().prop_map(Act::Take),
        1 => n().prop_map(Act::Debit),
        1 => (some_rate(), 0u32..60).prop_map(|(rate, burst)| Act::Rate(rate, burst)),
        1 => Just(Act::Reset),
    ]
}

proptest! {
    /// Whatever happens, and in whatever order grants are undone, the limiter is never fuller than
    /// if the undone grants had not been made.
    #[test]
    fn undone_grants_give_back_no_more_than_a_replay_without_them_has(
        bursty: bool, rate in some_rate(), burst in 1u32..60, acts in vec(some_act(), 1..60),
    ) {
        let mut world = World::new(bursty, rate, burst);
        for act in acts {
            world.act(act);
            let (found, most) = (world.full_in(), world.replay().full_in());
            prop_assert!(found >= most, "full in {found} ns instead of {most} after {act:?}");
        }
    }

    /// Where the queue sees each request, the limiter is exactly as full.
    #[test]
    fn undone_grants_leave_no_trace_if_the_queue_sees_all(
        bursty: bool, rate in some_rate(), burst in 1u32..60, acts in vec(seen_act(), 1..60),
    ) {
        let mut world = World::new(bursty, rate, burst);
        for act in acts {
            // Permits beyond the estimate are charged unconditionally.
            let act = match act {
                Act::Settle(index, used) => Act::Settle(index, match world.open.get(index % world.open.len().max(1)) {
                    Some(Open::Estimate(estimate, _)) => used.min(estimate.permits()),
                    _ => used,
                }),
                act => act,
            };
            world.act(act);
            let (found, exact) = (world.full_in(), world.replay().full_in());
            prop_assert!(found == exact, "full in {found} ns instead of {exact} after {act:?}");
        }
    }
}
