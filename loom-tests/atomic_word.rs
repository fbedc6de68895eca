//! Models the CAS loop, with one number and with two numbers in one word.

use loom::thread;
use std::sync::Arc;

use super::support::{model, model_of_three};
use crate::policy::atomic_word::{AtomicWord, update};
use crate::policy::{Policy, SmoothBursty, SmoothWarmingUp};
use crate::rate::Rate;
use crate::sync::{AtomicU64, AtomicU128, Ordering};
use crate::time::Nanos;

/// Two takers race for one permit. One of them gets it.
#[test]
fn one_permit_is_taken_once() {
    model(|| {
        let policy = Arc::new(SmoothBursty::new(Rate::per_second(1)));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, Nanos::ZERO, 1).is_ok())
        };
        let mine = policy.try_acquire(&state, Nanos::ZERO, 1).is_ok();
        assert!(mine != other.join().expect("no panic"));
    });
}

/// Updates a word by a load and a store, which loses updates.
fn broken_update(cell: &AtomicU64, step: impl Fn(u64) -> Result<u64, ()>) -> Result<(), ()> {
    let new = step(cell.load(Ordering::Relaxed))?;
    cell.store(new, Ordering::Relaxed);
    Ok(())
}

/// The broken twin: with a load and a store, two takers take the same permit.
#[test]
#[should_panic(expected = "one of the two")]
fn broken_one_permit_is_taken_once() {
    model(|| {
        let state = Arc::new(AtomicU64::new(0));
        let take =
            |state: &AtomicU64| broken_update(state, |word| if word == 0 { Ok(1) } else { Err(()) }).is_ok();
        let other = {
            let state = state.clone();
            thread::spawn(move || take(&state))
        };
        let mine = take(&state);
        assert!(mine != other.join().expect("no panic"), "one of the two");
    });
}

/// Three threads grant different sizes. The sum equals that of one thread.
#[test]
fn no_grant_is_lost() {
    model_of_three(|| {
        let state = Arc::new(AtomicU64::new(0));
        let others: Vec<_> = [10, 100]
            .into_iter()
            .map(|n| {
                let state = state.clone();
                thread::spawn(move || update(&*state, |word| Ok::<_, ()>((word + n, ()))))
            })
            .collect();
        update(&*state, |word| Ok::<_, ()>((word + 1, ()))).expect("never refused");
        for other in others {
            other.join().expect("no panic").expect("never refused");
        }
        assert_eq!(AtomicWord::load(&*state), 111);
    });
}

/// Two takers and a thread that gives back share a warming-up limiter. The two numbers change
/// together, so the result is that of some order of the three operations.
#[test]
fn two_numbers_change_together() {
    model(|| {
        let warm_up = std::time::Duration::from_secs(4);
        let policy = Arc::new(SmoothWarmingUp::new(Rate::per_second(2), warm_up).start_warm());
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, Nanos::ZERO, 1).expect("the first");
        let second = Nanos::new(500_000_000);
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, second, 2).is_ok())
        };
        policy.undo(&state, Nanos::ZERO, charge, u64::MAX);
        assert!(other.join().expect("no panic"), "due at 0.5 s at the latest");
        let due = policy.ready_at(&state, second, 0, 1);
        // Undone first: free since 0, two permits taken at 0.5 s cost 1 s. Taken first: 1 s less
        // the half second.
        assert!(due == Nanos::new(1_500_000_000) || due == Nanos::new(1_000_000_000), "{due:?}");
    });
}

/// Stores two numbers one after the other.
struct Halves {
    coldness: AtomicU64,
    next: AtomicU64,
}

/// The broken twin: each number has its own atomic, so two takers pay each other's cost.
#[test]
#[should_panic(expected = "prices of some order")]
fn broken_two_numbers_change_together() {
    // A permit costs 10 when cold and 1 when warm; the first permit warms up.
    fn take(state: &Halves) -> u64 {
        let price = if state.coldness.load(Ordering::Acquire) > 0 { 10 } else { 1 };
        state.next.fetch_add(price, Ordering::AcqRel);
        state.coldness.store(0, Ordering::Release);
        price
    }
    model(|| {
        let state = Arc::new(Halves { coldness: AtomicU64::new(1), next: AtomicU64::new(0) });
        let other = {
            let state = state.clone();
            thread::spawn(move || take(&state))
        };
        let total = take(&state) + other.join().expect("no panic");
        assert_eq!(total, 11, "prices of some order");
    });
}

/// With both numbers in one word, the costs are correct for some order.
#[test]
fn one_word_of_two_numbers_is_priced_in_some_order() {
    fn take(state: &AtomicU128) -> u128 {
        let Ok(price) = update(state, |word| {
            let price = if word >> 64 > 0 { 10 } else { 1 };
            Ok::<_, std::convert::Infallible>(((word & u128::from(u64::MAX)) + price, price))
        });
        price
    }
    model(|| {
        let state = Arc::new(AtomicU128::new(1 << 64));
        let other = {
            let state = state.clone();
            thread::spawn(move || take(&state))
        };
        assert_eq!(take(&state) + other.join().expect("no panic"), 11);
    });
}
