//! A composite's waiter that lacks permits of only one member waits there like a plain waiter:
//! among any number of others, in order, and for the same time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::counted::Counted;
use crate::support::{Bucket, bucket, spawn_pending};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::AcquireOwned;
use tidegate::all_of::AcquireAll;
use tidegate::{
    AllOf, AllRequest, AnyPolicy, Change, Clock, FixedWindow, ManualClock, Nanos, Pause, PolicyConfig, Rate,
    RateLimiter, SlidingLog, SmoothBursty, TokenBucket,
};
use tokio_test::task::{Spawn, spawn};

const MS: u64 = 1_000_000;

const SECOND: Duration = Duration::from_secs(1);

type Limiter = RateLimiter<AnyPolicy, ManualClock>;
type Waiting = Spawn<AcquireAll<ManualClock>>;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A new composite on one side, a plain request on the other.
    Join(u32),
    /// A plain request on both sides.
    JoinPlain(u32),
    Drop(usize),
    Try(u32),
    Refund(u32),
    SetRate(u64),
    Pass(u64),
}

fn some_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1..3u32).prop_map(Act::Join),
        2 => (1..3u32).prop_map(Act::JoinPlain),
        3 => any::<usize>().prop_map(Act::Drop),
        2 => (1..3u32).prop_map(Act::Try),
        1 => (1..3u32).prop_map(Act::Refund),
        1 => (3..20u64).prop_map(Act::SetRate),
        6 => (0..200 * MS).prop_map(Act::Pass),
    ]
}

fn some_policy() -> impl Strategy<Value = AnyPolicy> {
    ((3u64..20).prop_map(Rate::per_second), 0..4u8, 3..6u32).prop_map(|(rate, kind, burst)| match kind {
        0 => SmoothBursty::new(rate).max_burst(Duration::ZERO).into(),
        1 => TokenBucket::new(rate, burst).into(),
        2 => FixedWindow::new(rate).into(),
        _ => SlidingLog::new(rate).into(),
    })
}

enum Wait {
    Several(Spawn<AcquireAll<ManualClock>>),
    Plain(Spawn<AcquireOwned<AnyPolicy, ManualClock>>),
}

impl Wait {
    /// Polls the wait if it was woken. Returns whether it is over.
    fn is_over(&mut self, first: bool) -> bool {
        match self {
            Wait::Several(wait) => (first || wait.is_woken()) && wait.poll().is_ready(),
            Wait::Plain(wait) => (first || wait.is_woken()) && wait.poll().is_ready(),
        }
    }
}

/// One side: a limiter and its waiters.
struct Side {
    limiter: Limiter,
    /// The member that each composite uses in addition, and that always grants.
    ample: Limiter,
    waits: Vec<(usize, Wait)>,
    over: Vec<usize>,
}

impl Side {
    fn new(policy: &AnyPolicy, clock: &ManualClock) -> Side {
        let ample = TokenBucket::new(Rate::per_second(1_000_000), 1_000_000).into();
        let limiter = |policy| RateLimiter::with_clock(policy, clock.clone());
        Side { limiter: limiter(policy.clone()), ample: limiter(ample), waits: Vec::new(), over: Vec::new() }
    }

    fn join(&mut self, number: usize, mut wait: Wait) {
        match wait.is_over(true) {
            true => self.over.push(number),
            false => self.waits.push((number, wait)),
        }
    }

    fn several(&self, n: u32) -> Wait {
        let all = AllOf::new("short", &self.limiter).with("ample", &self.ample);
        Wait::Several(spawn(all.acquire_many([("short", n)])))
    }

    fn plain(&self, n: u32) -> Wait {
        Wait::Plain(spawn(self.limiter.acquire_owned(n)))
    }

    fn poll(&mut self) {
        let over = &mut self.over;
        self.waits.retain_mut(|(number, wait)| {
            let is_over = wait.is_over(false);
            if is_over {
                over.push(*number);
            }
            !is_over
        });
    }
}

/// Performs each act on both sides, and compares them after it.
fn compare(policy: &AnyPolicy, acts: Vec<Act>) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let [mut left, mut right] = [0, 1].map(|_| Side::new(policy, &clock));
    let sides = |left: &mut Side, right: &mut Side, act: &dyn Fn(&mut Side)| {
        act(left);
        act(right);
    };
    for (number, act) in acts.into_iter().enumerate() {
        match act {
            Act::Join(n) => {
                left.join(number, left.several(n));
                right.join(number, right.plain(n));
            }
            Act::JoinPlain(n) => sides(&mut left, &mut right, &|side| side.join(number, side.plain(n))),
            Act::Drop(_) if left.waits.is_empty() => {}
            Act::Drop(which) => sides(&mut left, &mut right, &|side| {
                side.waits.remove(which % side.waits.len());
            }),
            Act::Try(n) => {
                let answers = [&left, &right].map(|side| side.limiter.try_acquire_many(n));
                match policy.config() {
                    // Behind composites the time is predicted from a sum, which does not show where
                    // whole requests fit into a window.
                    PolicyConfig::FixedWindow { .. } | PolicyConfig::SlidingLog { .. } => {
                        prop_assert_eq!(answers[0].is_ok(), answers[1].is_ok());
                    }
                    _ => prop_assert_eq!(answers[0], answers[1]),
                }
            }
            Act::Refund(n) => sides(&mut left, &mut right, &|side| side.limiter.refund(n)),
            Act::SetRate(rate) => {
                sides(&mut left, &mut right, &|side| side.limiter.set_rate(Rate::per_second(rate)));
            }
            Act::Pass(span) => clock.advance(Duration::from_nanos(span)),
        }
        sides(&mut left, &mut right, &|side| side.poll());
        prop_assert_eq!(&left.over, &right.over);
    }
    Ok(())
}

/// Returns many waiters, at rates at which many of them are served.
fn many_acts() -> impl Strategy<Value = Vec<Act>> {
    let joins = vec((1..3u32).prop_map(Act::Join), 300..600);
    let act = some_act().prop_map(|act| match act {
        Act::SetRate(rate) => Act::SetRate(rate * 50),
        act => act,
    });
    (joins, vec(act, 1..200)).prop_map(|(mut joins, acts)| {
        joins.extend(acts);
        joins
    })
}

proptest! {
    #[test]
    fn a_composite_short_of_one_limiter_waits_as_any_request(policy in some_policy(), acts in vec(some_act(), 1..150)) {
        compare(&policy, acts)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn many_that_are_short_of_one_limiter_wait_as_any_others(rate in 300..1000u64, acts in many_acts()) {
        compare(&TokenBucket::new(Rate::per_second(rate), 4).into(), acts)?;
    }
}

/// Returns a waiter of a composite of a shared limiter and the user's own.
fn user(all: &Bucket, own: &Bucket, n: u32) -> Waiting {
    spawn_pending(AllOf::new("user", own).with("all", all).acquire_many([("all", n)]))
}

#[test]
fn thousands_of_users_wait_for_one_limiter_in_order() {
    const USERS: usize = 2000;
    let clock = ManualClock::new();
    let all = bucket(&clock, 1000, 1);
    assert!(all.try_acquire().is_ok());
    let owns: Vec<_> = (0..USERS).map(|_| bucket(&clock, 1, 1)).collect();
    let mut waits: Vec<_> = owns.iter().map(|own| user(&all, own, 1)).collect();
    // Every fifth waiter leaves, and the waiters behind it move up.
    let mut number = 0;
    waits.retain(|_| {
        number += 1;
        number % 5 != 0
    });
    for wait in &mut waits {
        assert!(!wait.is_woken());
        clock.advance(Duration::from_millis(1));
        assert!(wait.is_woken(), "each at its time");
        assert!(wait.poll().is_ready());
    }
    assert_eq!(all.status().available, 0);
}

#[test]
fn thousands_of_waiters_elsewhere_hold_up_no_request() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 1000, 10);
    // Each of them has another limiter that is not due for an hour.
    let hour = || RateLimiter::with_clock(TokenBucket::new("1/h".parse().expect("a rate"), 1), clock.clone());
    let owns: Vec<_> = (0..2000).map(|_| hour()).collect();
    assert!(owns.iter().all(|own| own.try_acquire().is_ok()));
    let waits: Vec<_> = owns.iter().map(|own| user(&all, own, 1)).collect();
    for _ in 0..100 {
        assert!((0..10).all(|_| all.try_acquire().is_ok()));
        assert!(all.try_acquire().is_err());
        clock.advance(Duration::from_millis(10));
    }
    // An hour later they are granted one after the other, as fast as the limiter allows.
    clock.advance(Duration::from_secs(3599));
    clock.advance(Duration::from_millis(500));
    let woken = |waits: &[Waiting]| waits.iter().filter(|wait| wait.is_woken()).count();
    assert_eq!(woken(&waits), 510);
    clock.advance(2 * SECOND);
    assert_eq!(woken(&waits), 2000);
}

#[test]
fn a_composite_that_waits_here_again_stands_where_it_stood() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 1, 2);
    assert!(all.try_acquire_many(2).is_ok());
    let ample = bucket(&clock, 1000, 1000);
    let held = [0, 1].map(|_| bucket(&clock, 1000, 1000));
    held.iter().for_each(|held| held.pause_for(Duration::from_secs(3600)));
    // Two in front, two that wait for other members, and behind them a waiter for two permits and a
    // waiter for one.
    let mut first = [0, 1].map(|_| user(&all, &ample, 1));
    let mut back = [0, 1].map(|which: usize| user(&all, &held[which], 1));
    let (mut two, mut last) = (user(&all, &ample, 2), user(&all, &ample, 1));
    clock.advance(SECOND / 2);
    assert!(held.iter().all(Bucket::resume));
    clock.advance(SECOND / 2);
    for wait in first.iter_mut().chain(&mut back) {
        assert!(wait.is_woken() && wait.poll().is_ready());
        assert!(!two.is_woken() && !last.is_woken());
        clock.advance(SECOND);
    }
    assert!(!last.is_woken(), "a later request that waits only here does not overtake");
    clock.advance(SECOND);
    assert!(two.is_woken() && two.poll().is_ready() && !last.is_woken());
    clock.advance(SECOND);
    assert!(last.poll().is_ready());
}

/// By the time its other limiter is due, another request has gone first here. From then on the
/// composite waits only here.
#[test]
fn a_composite_that_waits_for_one_member_by_now_is_notified_of_a_refund() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 1, 2);
    let held = [0, 1].map(|_| bucket(&clock, 1000, 1000));
    held.iter().for_each(|held| held.pause(Pause::lasting(SECOND).keep_permits()));
    let (mut one, mut two) = (user(&all, &held[0], 1), user(&all, &held[1], 2));
    clock.advance(SECOND);
    assert!(one.is_woken() && one.poll().is_ready());
    clock.advance(SECOND / 10);
    assert!(!two.is_woken());
    all.refund(1);
    assert!(two.is_woken() && two.poll().is_ready());
}

/// Among the seats of composites that wait elsewhere, the limiter judges those with the earliest
/// times. Bug: it judged the first seats in the queue, so a hundred seats that waited for an hour
/// elsewhere left all seats behind them unjudged.
#[test]
fn a_composite_does_not_starve_behind_many_that_wait_an_hour_elsewhere() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 1);
    assert!(a.try_acquire().is_ok());
    clock.advance(SECOND / 2);
    let b = bucket(&clock, 1, 1);
    assert!(b.try_acquire().is_ok());
    let hour = RateLimiter::with_clock(TokenBucket::new("1/h".parse().expect("a rate"), 200), clock.clone());
    assert!(hour.try_acquire_many(200).is_ok());
    let _far: Vec<_> = (0..100)
        .map(|_| {
            let all = AllOf::new("hour", &hour).with("a", &a).with("b", &b);
            spawn_pending(all.acquire_many([("hour", 200)]))
        })
        .collect();
    let mut wait = spawn_pending(AllOf::new("a", &a).with("b", &b).acquire());
    let mut crowd: Vec<_> = (0..6).map(|which| spawn([&a, &b][which % 2].acquire_owned(1))).collect();
    crowd.iter_mut().for_each(|wait| assert!(wait.poll().is_pending()));
    for _ in 0..100 {
        clock.advance(SECOND / 10);
        if wait.is_woken() {
            return assert!(wait.poll().is_ready());
        }
        for (which, other) in crowd.iter_mut().enumerate() {
            if other.is_woken() && other.poll().is_ready() {
                *other = spawn([&a, &b][which % 2].acquire_owned(1));
                assert!(other.poll().is_pending());
            }
        }
    }
    panic!("it starves");
}

/// Returns 200 composites that wait for one limiter, one millisecond apart.
fn two_hundred_users(
    all: &Bucket,
    clock: &ManualClock,
    within: Option<Duration>,
) -> (Vec<Bucket>, Vec<Waiting>) {
    all.drain();
    let owns: Vec<_> = (0..200).map(|_| bucket(clock, 1, 10)).collect();
    let waits = owns
        .iter()
        .map(|own| {
            let request = within.into_iter().fold(AllRequest::from([("all", 2)]), AllRequest::within);
            spawn_pending(AllOf::new("user", own).with("all", all).acquire_many(request))
        })
        .collect();
    (owns, waits)
}

#[test]
fn a_change_refuses_the_first_that_are_too_late_at_once_and_all_others_in_time() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 2000, 10);
    let (_owns, mut waits) = two_hundred_users(&all, &clock, Some(Duration::from_millis(300)));
    // Ten of them are still in time.
    all.set_rate(Rate::new(1, Duration::from_micros(15_000)).expect("a rate"));
    let woken = |waits: &[Waiting]| waits.iter().map(Spawn::is_woken).collect::<Vec<_>>();
    let refused: Vec<_> = (0..200).map(|number| (10..64).contains(&number)).collect();
    assert_eq!(woken(&waits), refused);
    // Each of the others checks again at the time it expected to be served.
    clock.advance(Duration::from_millis(200));
    let over: Vec<_> = (0..200).map(|number| !(6..10).contains(&number)).collect();
    assert_eq!(woken(&waits), over);
    clock.advance(Duration::from_millis(100));
    for (number, wait) in waits.iter_mut().enumerate() {
        let answer = wait.poll();
        assert!(
            matches!(answer, std::task::Poll::Ready(answer) if answer.is_ok() == (number < 10)),
            "{number}"
        );
    }
}

#[test]
fn a_request_that_can_no_longer_be_had_holds_up_no_other_one() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 2000, 10);
    let (_owns, mut waits) = two_hundred_users(&all, &clock, None);
    let ample = bucket(&clock, 1000, 1000);
    let mut last = user(&all, &ample, 1);
    all.change(Change::rate(Rate::per_second(4000)).burst(1)).expect("a rate and a burst");
    for wait in &mut waits {
        assert!(wait.is_woken() && matches!(wait.poll(), std::task::Poll::Ready(Err(_))));
    }
    clock.advance(Duration::from_micros(250));
    assert!(last.is_woken() && last.poll().is_ready());
}

#[test]
fn each_of_many_is_served_when_it_is_due_after_a_pause_a_debit_and_a_reset() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 2000, 10);
    let (_owns, mut waits) = two_hundred_users(&all, &clock, None);
    let served = |waits: &mut Vec<Waiting>| {
        let before = waits.len();
        waits.retain_mut(|wait| !(wait.is_woken() && wait.poll().is_ready()));
        before - waits.len()
    };
    all.pause_for(100 * SECOND);
    clock.advance(SECOND);
    assert_eq!(served(&mut waits), 0);
    assert!(all.resume());
    assert_eq!(served(&mut waits), 0, "no permit accrued");
    for _ in 0..20 {
        clock.advance(Duration::from_millis(1));
        assert_eq!(served(&mut waits), 1);
    }
    all.debit(200);
    clock.advance(Duration::from_millis(100));
    assert_eq!(served(&mut waits), 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(served(&mut waits), 1);
    all.reset();
    assert_eq!(served(&mut waits), 5);
    all.set_rate(Rate::per_second(20_000));
    clock.advance(Duration::from_millis(5));
    assert_eq!(served(&mut waits), 50);
    all.set_rate(Rate::per_second(200));
    for _ in 0..10 {
        clock.advance(Duration::from_millis(10));
        assert_eq!(served(&mut waits), 1);
    }
    all.set_rate(Rate::UNLIMITED);
    assert_eq!(served(&mut waits), 114);
}

/// Plain requests stand among composites, and each has a deadline.
#[test]
fn a_change_refuses_plain_requests_that_are_too_late_behind_composites() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 1000, 10);
    all.drain();
    let ample = bucket(&clock, 1000, 1000);
    let (mut composites, mut plain) = (Vec::new(), Vec::new());
    for number in 0..100 {
        composites.push(user(&all, &ample, 1));
        plain.push(spawn(all.acquire_owned(tidegate::Request::permits(1).within(SECOND))));
        assert!(plain[number].poll().is_pending());
    }
    all.set_rate(Rate::per_second(100));
    for (number, plain) in plain.iter_mut().enumerate() {
        // Refused requests take nothing.
        assert_eq!(plain.is_woken(), number >= 50, "{number}");
    }
    for _ in 0..50 {
        clock.advance(20 * Duration::from_millis(1));
    }
    let granted =
        plain.iter_mut().map(Spawn::poll).filter(|answer| matches!(answer, std::task::Poll::Ready(Ok(_))));
    assert_eq!(granted.count(), 50);
    assert_eq!(composites.iter().filter(|wait| wait.is_woken()).count(), 50);
}

#[test]
fn a_member_reports_what_a_request_beside_a_reservation_would_get() {
    let clock = ManualClock::new();
    let limiter =
        |burst| RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), burst), clock.clone());
    for (n, other) in [(4, 0), (4, 9), (2, 9), (3, 1), (1, 2)] {
        let (a, b) = (limiter(4), limiter(20));
        b.debit(20);
        a.debit(1);
        let both = AllOf::new("a", &a).with("b", &b);
        let reservation = both.reserve([("a", n), ("b", other)]).expect("a reservation");
        loop {
            let status = a.status();
            assert_eq!(status.waiting, 1);
            let mut taken = 0;
            while a.try_acquire().is_ok() {
                taken += 1;
                if taken == 1 {
                    assert_eq!(status.next_in, Duration::ZERO);
                }
            }
            assert_eq!(status.available, taken, "{n} {other} {status:?}");
            if taken == 0 {
                let refusal = a.try_acquire().expect_err("none is available");
                assert_eq!(refusal.retry_after(), Some(status.next_in), "{n} {other} {status:?}");
                break;
            }
        }
        drop(reservation);
    }
}

/// Two composites wait. The second one waits for no member, but for the seats of the first one: at
/// the first member until its window ends, and at the second member behind a later time.
struct HeldUp {
    window: Limiter,
    third: Limiter,
    first: Waiting,
    second: Waiting,
}

fn held_up(second_member: &str) -> HeldUp {
    let clock = ManualClock::starting_at(Nanos::from_duration(1800 * SECOND));
    let limiter =
        |line: &str| RateLimiter::with_clock(line.parse::<AnyPolicy>().expect("a policy"), clock.clone());
    let (window, bucket) = (limiter("fixed_window 7/h"), limiter(second_member));
    window.try_acquire_many(2).expect("permits");
    let third = limiter("token_bucket 1/s burst 6");
    third.debit(1503);
    let all = AllOf::new("window", &window).with("bucket", &bucket).with("third", &third);
    let both = AllOf::new("window", &window).with("bucket", &bucket);
    let first = spawn_pending(all.acquire_many([("window", 3), ("bucket", 1), ("third", 3)]));
    let second = spawn_pending(both.acquire_many([("window", 3), ("bucket", 1)]));
    HeldUp { window, third, first, second }
}

const SLOW: [&str; 4] = [
    "token_bucket 1/400s burst 1",
    "leaky_bucket 1/400s",
    "smooth_bursty 1/400s max_burst 0s",
    "sliding_log 1/400s",
];

/// Bug: a composite that waited for the seats of another one was not moved up when that one left.
#[test]
fn a_composite_behind_the_seats_of_a_dropped_one_moves_up() {
    for line in SLOW {
        let HeldUp { first, mut second, .. } = held_up(line);
        assert!(!second.is_woken());
        drop(first);
        assert!(second.is_woken(), "{line}");
        assert!(second.poll().is_ready());
    }
}

/// Bug: nor when the other one had to wait longer.
#[test]
fn a_composite_behind_the_seats_of_one_that_is_held_up_moves_up() {
    for line in SLOW {
        let HeldUp { third, mut first, mut second, .. } = held_up(line);
        third.pause_for(Duration::MAX);
        assert!(second.is_woken(), "{line}");
        assert!(second.poll().is_ready() && first.poll().is_pending());
    }
}

/// Bug: nor when permits came back.
#[test]
fn a_composite_behind_the_seats_of_another_one_moves_up_by_a_refund() {
    for line in SLOW {
        let HeldUp { window, first, mut second, .. } = held_up(line);
        window.refund(2);
        assert!(second.is_woken(), "{line}");
        assert!(second.poll().is_ready());
        drop(first);
    }
}

/// Bug: the idle seat of a waiter that was no longer the first hid the composites behind it from
/// permits that came back.
#[test]
fn an_idle_seat_hides_no_composite_behind_it_from_a_refund() {
    let clock = ManualClock::starting_at(Nanos::from_duration(1800 * SECOND));
    let limiter =
        |line: &str| RateLimiter::with_clock(line.parse::<AnyPolicy>().expect("a policy"), clock.clone());
    let (window, bucket) = (limiter("fixed_window 7/h"), limiter("token_bucket 1/400s burst 1"));
    let (third, fourth) = (limiter("token_bucket 1/s burst 6"), limiter("token_bucket 1/s burst 6"));
    window.try_acquire_many(2).expect("permits");
    third.debit(1503);
    fourth.debit(100_000);
    let both = || AllOf::new("window", &window).with("bucket", &bucket);
    let (all, others) = (both().with("third", &third), both().with("fourth", &fourth));
    let _first = spawn_pending(all.acquire_many([("window", 3), ("bucket", 1), ("third", 3)]));
    let _second = spawn_pending(others.acquire_many([("window", 3), ("bucket", 1), ("fourth", 0)]));
    let urgent = AllRequest::from([("window", 0), ("bucket", 0), ("fourth", 1)]).priority(1);
    let _urgent = spawn_pending(others.acquire_many(urgent));
    let mut behind = spawn_pending(both().acquire_many([("window", 3), ("bucket", 1)]));
    window.refund(2);
    assert!(behind.is_woken() && behind.poll().is_ready());
}

/// Bug: on a clock that advances with each reading, composites that waited for each other's seats
/// notified each other again and again when the first one left.
#[test]
fn composites_behind_each_other_s_seats_check_a_few_times_when_one_leaves() {
    let clock = Counted::reading(ManualClock::new(), |clock, before| {
        let random = (before as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        clock.now().saturating_add(Nanos::new(before as u64 * 50 + random))
    });
    let limiter =
        |line: &str| RateLimiter::with_clock(line.parse::<AnyPolicy>().expect("a policy"), clock.clone());
    let shared = limiter("token_bucket 1/s burst 1");
    let mut waits: Vec<_> = (0..20)
        .map(|_| {
            let own = limiter("fixed_window 1/h");
            own.try_acquire().expect("the only one");
            spawn_pending(AllOf::new("own", &own).with("shared", &shared).acquire())
        })
        .collect();
    let before = clock.readings.load(Ordering::Relaxed);
    drop(waits.remove(0));
    let read = clock.readings.load(Ordering::Relaxed) - before;
    assert!(read < 20_000, "the clock was read {read} times");
}
