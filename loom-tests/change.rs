//! Models a change of the terms against requests: no more permits are granted than the larger of
//! the old and the new terms allows.

use std::sync::Arc;

use loom::thread;

use super::support::{LoomClock, model, model_of_three, model_up_to};
use crate::clock::Clock;
use crate::policy::atomic_word::update;
use crate::policy::state::BucketState;
use crate::policy::window::stamp;
use crate::policy::{
    Change, FixedWindow, Keep, LeakyBucket, Policy, SlidingEstimate, SlidingWindow, SmoothBursty,
    TokenBucket, ticks,
};
use crate::rate::Rate;
use crate::time::Nanos;

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * 1_000_000_000)
}

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

/// Takes one permit, then takes in one thread while another thread changes the terms, and finally
/// takes all that is left. Returns how many permits were granted, all at one time.
fn granted<P: Policy>(policy: P, now: Nanos, change: impl Fn(&P, &P::State)) -> usize {
    let policy = Arc::new(policy);
    let state = Arc::new(policy.start(Nanos::ZERO));
    policy.try_acquire(&state, now, 1).expect("the first");
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || usize::from(policy.try_acquire(&state, now, 1).is_ok()))
    };
    change(&policy, &state);
    let meanwhile = other.join().expect("no panic");
    let after = (0..4).take_while(|_| policy.try_acquire(&state, now, 1).is_ok()).count();
    1 + meanwhile + after
}

/// Changes from one window to another and back, with cells at different indices in the ring.
fn sliding(from: &'static str, to: &'static str) {
    for second in [12, 13] {
        model_of_three(move || {
            let change = |policy: &SlidingWindow, state: &_| {
                policy.change(state, at(second), Change::rate(rate(to)).keep(Keep::Count)).expect("fits");
            };
            let granted = granted(SlidingWindow::new(rate(from), 2), at(second), change);
            assert_eq!(granted, 2, "two by either terms");
        });
    }
}

#[test]
fn a_sliding_window_that_becomes_longer_forgets_nothing() {
    sliding("2/2s", "2/20s");
}

#[test]
fn a_sliding_window_that_becomes_shorter_forgets_nothing() {
    sliding("2/20s", "2/2s");
}

fn one_word<P: Policy>(policy: impl Fn(Rate) -> P + Copy + Send + Sync + 'static) {
    for (from, to) in [("2/2s", "2/20s"), ("2/20s", "2/2s"), ("2/20s", "1/3s")] {
        // Bounded, like the models of three threads: every interleaving takes a minute.
        model_of_three(move || {
            let change = |policy: &P, state: &P::State| {
                policy.change(state, at(13), Change::rate(rate(to)).keep(Keep::Count)).expect("fits");
            };
            assert!(granted(policy(rate(from)), at(13), change) <= 2, "two by either terms");
        });
    }
}

#[test]
fn a_fixed_window_that_changes_forgets_nothing() {
    one_word(FixedWindow::new);
    one_word(|rate| FixedWindow::new(rate).from_first_grant());
}

#[test]
fn an_estimate_that_changes_forgets_nothing() {
    one_word(SlidingEstimate::new);
}

/// Changes of the limit, the length, and both, that keep the used share. Of two permits some are
/// taken. The old window and the new one have the same number left.
fn window<P: Policy>(policy: impl Fn(Rate) -> P + Copy + Send + Sync + 'static) {
    for (from, change, taken, left) in [
        ("2/20s", to("4/20s"), 2, 0),
        ("2/20s", to("4/20s"), 1, 2),
        ("4/20s", to("2/20s"), 4, 0),
        ("4/20s", to("2/20s"), 2, 2),
        ("2/2s", to("4/20s"), 2, 0),
        ("4/20s", to("2/2s"), 4, 0),
    ] {
        race(move || taken_from(policy(rate(from)), taken, NOW), change.keep(Keep::Ratio), left);
    }
}

#[test]
fn a_fixed_window_whose_limit_changes_grants_nothing_twice() {
    window(FixedWindow::new);
    window(|rate| FixedWindow::new(rate).from_first_grant());
}

#[test]
fn an_estimate_whose_limit_changes_grants_nothing_twice() {
    window(SlidingEstimate::new);
}

/// The estimate counts changes in one bit, so two changes leave the word of a full window as it
/// was.
#[test]
fn an_estimate_that_changes_there_and_back_grants_nothing() {
    model_of_three(|| {
        let both = Arc::new(taken_from(SlidingEstimate::new(rate("2/20s")), 2, NOW));
        let granted = granted_meanwhile(&both, 1, takes_twice, |policy, state| {
            for there_and_back in ["4/20s", "2/20s"] {
                let change = Change::rate(rate(there_and_back)).keep(Keep::Ratio);
                policy.change(state, NOW, change).expect("a rate fits");
            }
        });
        assert_eq!(granted, 0);
    });
}

#[test]
fn a_sliding_window_whose_limit_changes_grants_nothing_twice() {
    window(|rate| SlidingWindow::new(rate, 2));
}

/// Doubles the limit of a full window by `change`, which does not close the word, while a thread
/// tries twice.
fn broken<P: Policy>(policy: impl Fn(Rate) -> P + Send + Sync + 'static, change: fn(&P, &P::State)) {
    model_of_three(move || {
        let both = Arc::new(taken_from(policy(rate("2/20s")), 2, NOW));
        let granted = granted_meanwhile(&both, 1, takes_twice, change);
        assert!(granted == 0, "no more than there was");
    });
}

/// The broken twin: publishes the new limit before it converts the word.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_a_fixed_window_whose_limit_changes_grants_nothing_twice() {
    broken(FixedWindow::new, |policy, state| {
        let (old, new) = (policy.window.get(), policy.window.with(rate("4/20s")));
        policy.window.set(rate("4/20s"));
        let convert = |content| policy.converted(content, stamp(NOW), &old, &new, Keep::Ratio);
        state.word.update(|| (), convert);
    });
}

/// The broken twin: publishes the new limit before it converts the word.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_an_estimate_whose_limit_changes_grants_nothing_twice() {
    broken(SlidingEstimate::new, |policy, state| {
        let (old, new) = (policy.window.get(), policy.window.with(rate("4/20s")));
        policy.window.set(rate("4/20s"));
        let convert = |content| SlidingEstimate::converted(content, stamp(NOW), &old, &new, Keep::Ratio);
        state.word.update(|| (), convert);
    });
}

/// The broken twin: publishes the new limit before it converts the cells.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_a_sliding_window_whose_limit_changes_grants_nothing_twice() {
    broken(
        |rate| SlidingWindow::new(rate, 2),
        |policy, state| {
            let (old, new) = (policy.window.get(), policy.window.with(rate("4/20s")));
            policy.window.set(rate("4/20s"));
            let carry = |content| state.cells.carry_over(content, stamp(NOW), (&old, &new), 2, Keep::Ratio);
            state.cells.head.update(|| (), carry);
        },
    );
}

#[test]
fn a_bucket_that_changes_forgets_nothing() {
    one_word(|rate| TokenBucket::new(rate, 2));
}

/// Doubles the rate of a full bucket of two permits by `change`, while a thread takes all permits
/// after the clock has advanced by the time of two. Returns how many permits were granted. Like a
/// real clock, this one is never behind a reading of another thread.
fn late_takes(change: impl Fn(&TokenBucket, &BucketState, &LoomClock)) -> usize {
    let both = Arc::new(taken_from(TokenBucket::new(rate("2/2s"), 2), 0, NOW));
    let clock = LoomClock::new();
    clock.set(NOW);
    let takes = {
        let (both, clock) = (both.clone(), clock.clone());
        thread::spawn(move || {
            clock.set(LATER);
            (0..2).filter(|_| both.0.try_acquire(&both.1, LATER, 1).is_ok()).count()
        })
    };
    change(&both.0, &both.1, &clock);
    let taken = takes.join().expect("no panic");
    taken + (0..4).take_while(|_| both.0.try_acquire(&both.1, LATER, 1).is_ok()).count()
}

const LATER: Nanos = Nanos::new(15_000_000_000);

fn twice_as_fast() -> Change {
    Change::rate(rate("4/2s")).keep(Keep::Count)
}

#[test]
fn a_bucket_that_becomes_faster_repays_no_permits_that_were_taken_meanwhile() {
    model(|| {
        let granted = late_takes(|policy, state, clock| {
            policy.change_now(state, clock.now(), &|| clock.now(), twice_as_fast()).expect("fits");
        });
        assert!(granted <= 2, "no more than a burst");
    });
}

/// The broken twin: reads the clock before it has read the state.
#[test]
#[should_panic(expected = "no more than a burst")]
fn broken_a_bucket_that_becomes_faster_repays_no_permits_that_were_taken_meanwhile() {
    model(|| {
        let granted = late_takes(|policy, state, clock| {
            policy.change(state, clock.now(), twice_as_fast()).expect("fits");
        });
        assert!(granted <= 2, "no more than a burst");
    });
}

/// The time at which buckets change.
const NOW: Nanos = Nanos::new(13_000_000_000);
const HALF_A_SECOND_AGO: Nanos = Nanos::new(12_500_000_000);

/// Returns a full bucket from which some permits are taken at a time.
fn bucket(
    text: &'static str,
    burst: u32,
    (taken, when): (usize, Nanos),
) -> impl Fn() -> (TokenBucket, BucketState) + Copy + Send + Sync + 'static {
    move || taken_from(TokenBucket::new(rate(text), burst), taken, when)
}

fn taken_from<P: Policy>(policy: P, taken: usize, when: Nanos) -> (P, P::State) {
    let state = policy.start(Nanos::ZERO);
    for _ in 0..taken {
        policy.try_acquire(&state, when, 1).expect("there is one");
    }
    (policy, state)
}

/// Changes a bucket while other threads run `work`, then takes all that is left. Returns how many
/// permits were granted.
fn granted_meanwhile<P: Policy>(
    both: &Arc<(P, P::State)>,
    threads: usize,
    other: impl Fn(&P, &P::State) -> usize + Copy + Send + 'static,
    change: impl Fn(&P, &P::State),
) -> usize {
    let others: Vec<_> = (0..threads)
        .map(|_| {
            let both = both.clone();
            thread::spawn(move || other(&both.0, &both.1))
        })
        .collect();
    change(&both.0, &both.1);
    let meanwhile: usize = others.into_iter().map(|other| other.join().expect("no panic")).sum();
    meanwhile + (0..9).take_while(|_| both.0.try_acquire(&both.1, NOW, 1).is_ok()).count()
}

/// Returns how many of two attempts are granted.
fn takes_twice<P: Policy>(policy: &P, state: &P::State) -> usize {
    (0..2).filter(|_| policy.try_acquire(state, NOW, 1).is_ok()).count()
}

fn takes_once<P: Policy>(policy: &P, state: &P::State) -> usize {
    usize::from(policy.try_acquire(state, NOW, 1).is_ok())
}

fn changes<P: Policy>(change: Change) -> impl Fn(&P, &P::State) {
    move |policy, state| {
        policy.change(state, NOW, change).expect("fits");
    }
}

/// A thread tries twice while a bucket with `left` permits changes.
fn race<P: Policy>(bucket: impl Fn() -> (P, P::State) + Send + Sync + 'static, change: Change, left: usize) {
    model_of_three(move || {
        let granted = granted_meanwhile(&Arc::new(bucket()), 1, takes_twice, changes(change));
        assert!(granted <= left, "no more than there was");
    });
}

fn to(text: &str) -> Change {
    Change::rate(rate(text))
}

#[test]
fn a_bucket_that_becomes_slower_or_faster_grants_nothing_twice() {
    for (from, change) in [("2/2s", to("2/20s")), ("2/20s", to("2/2s")), ("2/20s", to("1/3s"))] {
        for keep in [Keep::Count, Keep::Ratio] {
            race(bucket(from, 2, (0, NOW)), change.keep(keep), 2);
            race(bucket(from, 2, (1, NOW)), change.keep(keep), 1);
        }
    }
}

/// A `SmoothBursty` of four permits, of which three were taken; the last is granted on credit.
#[test]
fn a_bursty_that_becomes_slower_or_faster_grants_nothing_twice() {
    for (from, change) in [("4/s", to("1/s")), ("4/s", to("16/s"))] {
        let bursty = move || taken_from(SmoothBursty::new(rate(from)).start_full(), 3, NOW);
        race(bursty, change.keep(Keep::Count), 2);
    }
    // A reset: the permits of before the change or those after it.
    let bursty = || taken_from(SmoothBursty::new(rate("4/s")).start_full(), 3, NOW);
    race(bursty, to("1/s").keep(Keep::Nothing), 2 + 2);
}

/// Half a permit has accrued since all permits were taken.
#[test]
fn a_bucket_with_a_part_of_a_permit_grants_nothing_twice() {
    for keep in [Keep::Count, Keep::Ratio] {
        race(bucket("2/2s", 2, (2, HALF_A_SECOND_AGO)), to("2/20s").keep(keep), 0);
        race(bucket("2/20s", 2, (2, HALF_A_SECOND_AGO)), to("2/2s").keep(keep), 0);
    }
}

#[test]
fn a_bucket_whose_size_changes_grants_nothing_twice() {
    for (from, change) in [("2/2s", to("2/2s")), ("2/2s", to("2/20s")), ("2/20s", to("2/2s"))] {
        race(bucket(from, 2, (1, NOW)), change.burst(1), 1);
        race(bucket(from, 2, (1, NOW)), change.burst(4), 1);
        // Half of four is one permit more.
        race(bucket(from, 2, (1, NOW)), change.burst(4).keep(Keep::Ratio), 2);
    }
}

#[test]
fn a_bucket_that_starts_anew_grants_nothing_twice() {
    for (from, change) in [("2/2s", to("2/20s")), ("2/20s", to("2/2s"))] {
        let of_two = move || {
            let policy = TokenBucket::new(rate(from), 2).start_with(1).expect("fits");
            let state = policy.start(NOW);
            policy.try_acquire(&state, NOW, 1).expect("it starts with one");
            (policy, state)
        };
        race(of_two, change.keep(Keep::Nothing), 1);
    }
}

#[test]
fn a_bucket_that_stands_still_grants_nothing_twice() {
    race(bucket("2/2s", 2, (1, NOW)), Change::rate(Rate::ZERO), 1);
    for change in [to("2/2s"), to("2/20s"), to("4/s")] {
        let still = move || {
            let (policy, state) = bucket("2/2s", 2, (1, at(5)))();
            policy.set_rate(&state, at(5), Rate::ZERO);
            (policy, state)
        };
        race(still, change, 1);
    }
}

#[test]
fn a_bucket_in_steps_that_changes_grants_nothing_twice() {
    for (from, change) in [("2/2s", to("2/20s")), ("2/20s", to("2/2s")), ("2/2s", Change::rate(Rate::ZERO))] {
        let interval_refill =
            move || taken_from(TokenBucket::new(rate(from), 2).interval_refill().expect("fits"), 1, NOW);
        race(interval_refill, change, 1);
    }
}

#[test]
fn a_leaky_bucket_that_changes_grants_nothing_twice() {
    for (from, change) in [("2/2s", to("2/20s")), ("2/20s", to("2/2s"))] {
        race(move || taken_from(LeakyBucket::new(rate(from)).nodelay(1), 1, NOW), change, 1);
    }
}

#[test]
fn a_bucket_that_changes_grants_several_at_once_no_more_than_once() {
    for (from, change) in [("4/4s", to("4/40s")), ("4/40s", to("4/4s"))] {
        model_of_three(move || {
            let pairs = |policy: &TokenBucket, state: &_| {
                2 * (0..2).filter(|_| policy.try_acquire(state, NOW, 2).is_ok()).count()
            };
            let granted =
                granted_meanwhile(&Arc::new(bucket(from, 4, (2, NOW))()), 1, pairs, changes(change));
            assert!(granted <= 2, "no more than there was");
        });
    }
}

/// A thread that sees the state written by another thread also sees the terms by which it was
/// written.
#[test]
fn a_bucket_that_changes_among_three_grants_nothing_twice() {
    model_up_to(1, || {
        let both = Arc::new(bucket("2/2s", 2, (1, NOW))());
        let granted = granted_meanwhile(&both, 2, takes_once, changes(to("2/20s")));
        assert!(granted <= 1, "no more than there was");
    });
}

/// The broken twin: the old terms still grant after the bucket is converted, until the new terms
/// are published.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_a_bucket_that_becomes_slower_grants_nothing_twice() {
    model_of_three(|| {
        let takes_by_what_is_published = |policy: &TokenBucket, state: &BucketState| {
            let take = |zero| policy.bucket.take(zero, NOW, 1, policy.bucket.published(1));
            (0..2).filter(|_| update(&state.zero, take).is_ok()).count()
        };
        let both = Arc::new(bucket("2/2s", 2, (1, NOW))());
        let granted = granted_meanwhile(&both, 1, takes_by_what_is_published, changes(to("2/20s")));
        assert!(granted <= 1, "no more than there was");
    });
}

/// The broken twin: the faster rate grants before the bucket is converted.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_a_bucket_that_becomes_faster_grants_nothing_twice() {
    model_of_three(|| {
        let takes_by_the_faster = |policy: &TokenBucket, state: &BucketState| {
            let faster = TokenBucket::new(rate("2/2s"), 2).bucket.published(1);
            let take = |zero| policy.bucket.take(zero, NOW, 1, faster);
            (0..2).filter(|_| update(&state.zero, take).is_ok()).count()
        };
        let both = Arc::new(bucket("2/20s", 2, (1, NOW))());
        let granted = granted_meanwhile(&both, 1, takes_by_the_faster, changes(to("2/2s")));
        assert!(granted <= 1, "no more than there was");
    });
}

/// The broken twin: reads the terms before the state.
#[test]
#[should_panic(expected = "no more than there was")]
fn broken_a_bucket_with_a_part_of_a_permit_grants_nothing_twice() {
    model_of_three(|| {
        let takes_by_what_it_read = |policy: &TokenBucket, state: &BucketState| {
            let terms = policy.bucket.published(1);
            usize::from(update(&state.zero, |zero| policy.bucket.take(zero, NOW, 1, terms)).is_ok())
        };
        let both = Arc::new(bucket("2/2s", 2, (2, HALF_A_SECOND_AGO))());
        let granted = granted_meanwhile(&both, 1, takes_by_what_it_read, changes(to("2/20s")));
        assert!(granted == 0, "no more than there was");
    });
}

#[test]
fn of_two_changes_neither_is_lost() {
    for burst in [1, 3] {
        model_of_three(move || {
            let too = move |policy: &TokenBucket, state: &_| {
                changes(Change::only_burst(burst))(policy, state);
                0
            };
            let both = Arc::new(bucket("2/2s", 2, (1, NOW))());
            assert_eq!(granted_meanwhile(&both, 1, too, changes(to("2/20s"))), 1, "as many as there were");
            assert_eq!((both.0.rate(), both.0.burst()), (rate("2/20s"), burst));
        });
    }
}

/// Starts with half a permit. With an empty bucket a change may leave the state as it is, and then
/// these permits count by either terms.
#[test]
fn refunds_and_debits_while_a_bucket_changes_count_as_so_many_permits() {
    for (from, change, earlier) in
        [("2/2s", to("2/20s"), 12_500_000_000), ("2/20s", to("2/2s"), 8_000_000_000)]
    {
        let half = bucket(from, 2, (2, Nanos::new(earlier)));
        model_of_three(move || {
            let gives_back = |policy: &TokenBucket, state: &_| {
                policy.refund(state, NOW, 1);
                0
            };
            let both = Arc::new(half());
            assert_eq!(granted_meanwhile(&both, 1, gives_back, changes(change)), 1, "one was given back");
        });
        model_of_three(move || {
            let owes = |policy: &TokenBucket, state: &_| {
                policy.debit(state, NOW, 1);
                0
            };
            let both = Arc::new(half());
            assert_eq!(granted_meanwhile(&both, 1, owes, changes(change)), 0, "half of one is owed");
            let due = both.0.ready_at(&both.1, NOW, 0, 1);
            let interval = both.0.weight(1) / ticks::PER_NANO;
            assert_eq!(
                due,
                NOW.saturating_add(Nanos::new(interval + interval / 2)),
                "that half, and another"
            );
        });
    }
}
