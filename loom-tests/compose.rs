//! Models composites that take from two members, against each other, plain takers and drops.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use loom::thread;

use super::support::{
    Asking, LoomClock, ONE, SECOND, TestLimiter, Woken, model, model_of_three, model_up_to,
};
use crate::all_of::all::{All, Entry, Kind};
use crate::all_of::member::Member;
use crate::all_of::weights::Weights;
use crate::counting::CountingLimit;
use crate::limiter::RateLimiter;
use crate::limiter::change::TIMES_CHANGED;
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Change, TokenBucket};
use crate::rate::Rate;
use crate::sync::Ordering;
use crate::time::Nanos;

type Bucket = TestLimiter<Single<TokenBucket>>;
type Both = TestLimiter<All<LoomClock>>;

/// Returns a bucket of one permit that gains one each second.
fn bucket(clock: &LoomClock) -> Bucket {
    bucket_of(1, clock)
}

fn bucket_of(burst: u32, clock: &LoomClock) -> Bucket {
    let policy = TokenBucket::new(Rate::per_second(1), burst);
    Arc::new(Shared::new(Single::new(policy, clock), clock.clone(), Duration::ZERO))
}

fn member(limiter: &Bucket) -> RateLimiter<TokenBucket, LoomClock> {
    RateLimiter { shared: limiter.clone() }
}

fn both(members: [&Bucket; 2], clock: &LoomClock) -> Both {
    let entry = |limiter: &Bucket| Entry::new("one of them".into(), Kind::Rate(Arc::new(member(limiter))));
    let members = members.map(entry).into();
    Arc::new_cyclic(|limiter| Shared::new(All::new(members, limiter.clone()), clock.clone(), Duration::ZERO))
}

fn ones() -> Weights {
    Weights::new(&[1, 1])
}

fn has_permit(limiter: &Bucket) -> bool {
    limiter.status().available > 0
}

/// Two composites share two members with one permit each, written in opposite order. One composite
/// gets both permits, the other none.
#[test]
fn of_two_composites_one_gets_the_last_permits() {
    model(|| {
        let clock = LoomClock::new();
        let (a, b) = (bucket(&clock), bucket(&clock));
        let (ab, ba) = (both([&a, &b], &clock), both([&b, &a], &clock));
        let other = thread::spawn(move || ba.try_grant(Demand::exactly(&ones(), 0)).is_ok());
        let first = ab.try_grant(Demand::exactly(&ones(), 0)).is_ok();
        let second = other.join().expect("no panic");
        assert!(first != second, "one of them");
        assert!(!has_permit(&a) && !has_permit(&b), "and both permits");
    });
}

/// The broken twin: each composite asks its members in the order in which it was written. Each may
/// take the permit that the other one needs, and both are refused.
#[test]
#[should_panic(expected = "one of them")]
fn broken_of_two_composites_one_gets_the_last_permits() {
    model(|| {
        let clock = LoomClock::new();
        let (a, b) = (bucket(&clock), bucket(&clock));
        let take = |first: &Bucket, second: &Bucket| {
            let (first, second) = (member(first), member(second));
            let mut rest = || second.take_then((1, 0), None, &mut || Ok(())).map(drop);
            first.take_then((1, 0), None, &mut rest).is_ok()
        };
        let other = {
            let (a, b) = (a.clone(), b.clone());
            thread::spawn(move || take(&b, &a))
        };
        let first = take(&a, &b);
        let second = other.join().expect("no panic");
        assert!(first != second, "one of them");
    });
}

/// A composite runs against a taker of one member. The composite has both permits or none, and a
/// permit that it did not get is still available.
fn composite_against_a_plain_taker(attempt: fn(&Bucket, &Bucket, &LoomClock) -> bool) {
    model(move || {
        let clock = LoomClock::new();
        let (a, b) = (bucket(&clock), bucket(&clock));
        let other = {
            let b = b.clone();
            thread::spawn(move || b.try_acquire(ONE).is_ok())
        };
        let got_both = attempt(&a, &b, &clock);
        let taken = other.join().expect("no panic");
        assert!(got_both || taken, "one of them has it");
        assert!(!(got_both && taken), "one permit, one owner");
        assert_eq!(has_permit(&a), !got_both, "all or nothing");
        assert!(!has_permit(&b));
    });
}

#[test]
fn a_composite_takes_all_or_nothing() {
    composite_against_a_plain_taker(|a, b, clock| {
        both([a, b], clock).try_grant(Demand::exactly(&ones(), 0)).is_ok()
    });
}

/// The broken twin: takes from one member after the other, and does not put back.
#[test]
#[should_panic(expected = "all or nothing")]
fn broken_a_composite_takes_all_or_nothing() {
    composite_against_a_plain_taker(|a, b, _| a.try_acquire(ONE).is_ok() && b.try_acquire(ONE).is_ok());
}

/// A composite takes one of two permits and puts it back, while another thread gives one back and
/// takes both. Without the composite the permit given back would exceed the burst. So either that
/// permit is lost, or the permit that the composite puts back.
fn undo_against_a_refund(attempt: fn(&Bucket, &Bucket, &LoomClock)) {
    model(move || {
        let clock = LoomClock::new();
        let (a, b) = (bucket_of(2, &clock), bucket(&clock));
        b.try_acquire(ONE).expect("the only one");
        let other = {
            let a = a.clone();
            thread::spawn(move || {
                a.refund(1);
                if a.try_acquire(Demand { ask: &2, ..ONE }).is_ok() { 2 } else { 0 }
            })
        };
        attempt(&a, &b, &clock);
        let taken = other.join().expect("no panic");
        let left = (0..3).filter(|_| a.try_acquire(ONE).is_ok()).count();
        assert!(taken + left <= 2, "no permit is invented");
    });
}

/// As if `b` had a permit when the composite checked it.
#[test]
fn permits_put_back_are_those_taken() {
    undo_against_a_refund(|a, b, _| {
        let (a, b) = (member(a), member(b));
        let mut rest = || b.take_then((1, 0), None, &mut || Ok(())).map(drop);
        let _ = a.take_then((1, 0), None, &mut rest);
    });
}

/// The broken twin: an undo that does not check which permits have been given back since.
#[test]
#[should_panic(expected = "no permit is invented")]
fn broken_permits_put_back_are_those_taken() {
    undo_against_a_refund(|a, _, clock| {
        let now = crate::Clock::now(clock);
        let (policy, state) = (&a.rule.policy, &a.rule.state);
        let Ok(charge) = crate::Policy::try_acquire(policy, state, now, 1) else { return };
        a.serve_then(|line, _| {
            line.refund(&a.rule, 1, |_| crate::Policy::undo(policy, state, now, charge, u64::MAX));
        });
    });
}

/// The only waiter is dropped while its permit comes due. Whether it was granted or not, all
/// permits are available afterwards, and no seat is left.
#[test]
fn a_dropped_wait_leaves_no_trace_in_any_member() {
    model(|| {
        let clock = LoomClock::new();
        let (a, b) = (bucket(&clock), bucket(&clock));
        a.try_acquire(ONE).expect("the only one");
        let ab = both([&a, &b], &clock);
        let mut request = Asking::new(&ab, ones());
        assert!(request.poll().is_pending());
        let other = {
            let clock = clock.clone();
            thread::spawn(move || clock.set(SECOND))
        };
        drop(request);
        other.join().expect("no panic");
        for limiter in [&a, &b] {
            assert!(limiter.gate_word.load().is_clear(), "no seat is left");
            assert!(limiter.try_acquire(ONE).is_ok() && limiter.try_acquire(ONE).is_err());
        }
    });
}

/// A waiter takes a seat in the queue of a member while a permit is given back there. It is
/// granted, whichever comes first.
fn sitting_down_against_a_refund(refund: fn(&Bucket)) {
    model_of_three(move || {
        let clock = LoomClock::new();
        let (a, b) = (bucket(&clock), bucket(&clock));
        a.try_acquire(ONE).expect("the only one");
        let ab = both([&a, &b], &clock);
        let other = {
            let a = a.clone();
            thread::spawn(move || refund(&a))
        };
        let mut request = Asking::new(&ab, ones());
        let ready = request.poll().is_ready();
        other.join().expect("no panic");
        assert!(ready || request.is_last_granted());
    });
}

#[test]
fn a_refund_reaches_a_seat_taken_meanwhile() {
    sitting_down_against_a_refund(|a| a.refund(1));
}

/// The broken twin: a refund that does not notify the seats.
#[test]
#[should_panic(expected = "nobody is left waiting")]
fn broken_a_refund_reaches_a_seat_taken_meanwhile() {
    sitting_down_against_a_refund(|a| {
        let level = crate::Policy::refund(&a.rule.policy, &a.rule.state, Nanos::ZERO, 1);
        crate::sync::lock(&a.line).refund(&a.rule, 1, |_| level);
    });
}

/// Runs a model in every interleaving with up to two preemptions: two waiting composites take too
/// many steps for a model without a bound.
fn model_of_two_waits(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Returns two composites of the same members, written in opposite order. One member has no permit.
fn two_that_wait(clock: &LoomClock) -> (Bucket, [Both; 2]) {
    let (a, b) = (bucket(clock), bucket_of(2, clock));
    a.try_acquire(ONE).expect("the only one");
    let two = [both([&a, &b], clock), both([&b, &a], clock)];
    (a, two)
}

/// Both composites take seats at once. One is granted with the first permit, and the other one with
/// the next.
#[test]
fn two_that_sit_down_together_are_served_one_by_one() {
    model_of_two_waits(|| {
        let clock = LoomClock::new();
        let (a, [ab, ba]) = two_that_wait(&clock);
        let other = thread::spawn(move || {
            let mut request = Asking::new(&ba, ones());
            assert!(request.poll().is_pending());
            request
        });
        let mut first = Asking::new(&ab, ones());
        assert!(first.poll().is_pending());
        let mut second = other.join().expect("no panic");
        let mut is_granted = || {
            [&mut first, &mut second].map(|request| {
                request.wait.is_done() || matches!(request.limiter.claim(&mut request.wait), Some(Ok(_)))
            })
        };
        clock.set(SECOND);
        let [one, other] = is_granted();
        assert!(one != other, "one of them");
        clock.set(Nanos::new(2 * SECOND.as_u64()));
        assert_eq!(is_granted(), [true; 2], "and then the other one");
        assert!(a.gate_word.load().is_clear(), "no seat is left");
    });
}

/// One composite leaves while the permit comes due. The other one gets it.
#[test]
fn of_two_that_wait_one_leaves_and_the_other_is_served() {
    model_of_two_waits(|| {
        let clock = LoomClock::new();
        let (a, [ab, ba]) = two_that_wait(&clock);
        let (mut first, mut second) = (Asking::new(&ab, ones()), Asking::new(&ba, ones()));
        assert!(first.poll().is_pending() && second.poll().is_pending());
        let other = {
            let clock = clock.clone();
            thread::spawn(move || clock.set(SECOND))
        };
        drop(first);
        other.join().expect("no panic");
        assert!(second.is_last_granted());
        assert!(a.gate_word.load().is_clear(), "no seat is left");
        drop(second);
    });
}

/// A composite's waiter for two permits joins while its only member changes, so that the waiter
/// would never be granted. The waiter is refused, by its poll or after it was woken. With up to two
/// preemptions.
fn joining_against_a_change<M: Clone + Send + Sync + 'static>(
    make: fn(&LoomClock) -> (M, Kind),
    change: fn(&M),
) {
    model_up_to(2, move || {
        let clock = LoomClock::new();
        let (member, kind) = make(&clock);
        let members = [Entry::new("the only one".into(), kind)].into();
        let limiter: Both = Arc::new_cyclic(|limiter| {
            Shared::new(All::new(members, limiter.clone()), clock.clone(), Duration::ZERO)
        });
        let woken = Woken::new();
        let mut wait = Asking::new(&limiter, Weights::new(&[2]));
        wait.waker = Waker::from(woken.clone());
        let other = {
            let member = member.clone();
            thread::spawn(move || change(&member))
        };
        let is_refused = wait.poll().is_ready();
        other.join().expect("no panic");
        assert!(is_refused || woken.is_woken(), "the change is missed");
        assert!(is_refused || matches!(wait.poll(), Poll::Ready(Err(_))));
    });
}

/// A bucket with one permit.
fn short_member(clock: &LoomClock) -> (Bucket, Kind) {
    let bucket = bucket_of(2, clock);
    bucket.try_acquire(ONE).expect("one of two");
    (bucket.clone(), Kind::Rate(Arc::new(member(&bucket))))
}

/// A counting limit with one of two permits in use.
fn used_limit(_clock: &LoomClock) -> (CountingLimit, Kind) {
    let limit = CountingLimit::new(2);
    std::mem::forget(limit.try_acquire().expect("one of two"));
    (limit.clone(), Kind::Counting(limit))
}

#[test]
fn a_composite_that_joins_while_its_rate_limiter_closes_ends() {
    joining_against_a_change(short_member, |bucket| {
        bucket.close();
    });
}

#[test]
fn a_composite_that_joins_while_its_rate_limiter_is_lowered_ends() {
    joining_against_a_change(short_member, |bucket| {
        bucket.change(Change::only_burst(1)).expect("a change");
    });
}

#[test]
fn a_composite_that_joins_while_a_permit_of_its_rate_limiter_is_kept_ends() {
    joining_against_a_change(short_member, |bucket| bucket.keep_for_priority(1, 1));
}

#[test]
fn a_composite_that_joins_while_its_counting_limit_closes_ends() {
    joining_against_a_change(used_limit, |limit| {
        limit.close();
    });
}

#[test]
fn a_composite_that_joins_while_its_counting_limit_is_lowered_ends() {
    joining_against_a_change(used_limit, |limit| limit.set_limit(1));
}

/// The broken twin: the count of changes does not stay raised.
#[test]
#[should_panic(expected = "the change is missed")]
fn broken_a_composite_that_joins_while_its_rate_limiter_closes_ends() {
    joining_against_a_change(short_member, |bucket| {
        bucket.close();
        bucket.changes.fetch_sub(TIMES_CHANGED, Ordering::Relaxed);
    });
}

/// The broken twin: the count of changes does not stay raised.
#[test]
#[should_panic(expected = "the change is missed")]
fn broken_a_composite_that_joins_while_its_counting_limit_closes_ends() {
    joining_against_a_change(used_limit, |limit| {
        limit.close();
        limit.pool.lowered.fetch_sub(1, Ordering::Relaxed);
    });
}
