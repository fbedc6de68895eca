//! A limiter of two policies in pauses: each policy behaves as it would alone. The model keeps the
//! history of grants, and replays it on a plain limiter for each policy.

use std::time::Duration;

use crate::support::estimate;
use crate::support::pairs::{EXACT, KINDS, Two};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{
    AllOf, AllRefusal, AnyPolicy, Change, ManualClock, Pause, Policy, Rate, RateLimiter, Refusal, Status,
};

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Nanoseconds.
    Pass(u64),
    Take(u32),
    /// Waits until the permits are available.
    Wait(u32),
    /// Takes permits, and settles at the second number of them some acts later.
    Estimate(u32, u32, usize),
    Pause(u64, bool),
    Resume,
    /// Changes the rate of one of the two policies.
    Rate(usize, u64),
    Debit(u32),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let millis = || prop_oneof![1..900u64, Just(100u64), Just(250), Just(1_000), 1_000..4_000u64];
    let act = prop_oneof![
        6 => millis().prop_map(|millis| Act::Pass(millis * 1_000_000)),
        1 => (1u64..2_000_000_000).prop_map(Act::Pass),
        8 => (1u32..6).prop_map(Act::Take),
        2 => (1u32..6).prop_map(Act::Wait),
        2 => (1u32..6, 0u32..5, 1usize..6).prop_map(|(n, used, later)| Act::Estimate(n, used.min(n), later)),
        4 => (millis(), any::<bool>()).prop_map(|(span, keeps)| Act::Pause(span, keeps)),
        1 => Just(Act::Resume),
        1 => (0usize..2, 2u64..12).prop_map(|(part, rate)| Act::Rate(part, rate)),
        1 => (1u32..4).prop_map(Act::Debit),
    ];
    vec(act, 1..40)
}

fn pause(span: u64, keeps: bool) -> Pause {
    let pause = Pause::lasting(Duration::from_millis(span));
    if keeps { pause.keep_permits() } else { pause }
}

/// Returns a limiter of one of the two policies, after everything that happened to both.
fn alone(kind: &str, part: usize, history: &[Act]) -> RateLimiter<AnyPolicy, ManualClock> {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(kind.parse().expect("a policy"), clock.clone());
    for act in history {
        match *act {
            Act::Pass(nanos) => clock.advance(Duration::from_nanos(nanos)),
            Act::Take(0) => {}
            Act::Take(n) => assert!(limiter.try_acquire_many(n).is_ok(), "granted by both"),
            Act::Wait(_) | Act::Estimate(..) => unreachable!("noted as what it takes"),
            Act::Pause(span, keeps) => limiter.pause(pause(span, keeps)),
            Act::Resume => assert!(limiter.resume() || !limiter.is_closed()),
            Act::Rate(of, rate) if of == part => limiter.set_rate(Rate::per_second(rate)),
            Act::Rate(..) => {}
            Act::Debit(n) => limiter.debit(n),
        }
    }
    limiter
}

fn told<T>(answer: Result<T, Refusal>) -> Duration {
    answer.err().map_or(Duration::ZERO, |refusal| refusal.retry_after().unwrap_or(Duration::MAX))
}

type Numbers = (u64, u64, Duration, Duration, Duration);

fn numbers(status: Status) -> Numbers {
    let Status { limit, available, next_in, full_in, paused_for, .. } = status;
    (limit, available, next_in, full_in, paused_for)
}

fn stricter([first, second]: [Numbers; 2]) -> Numbers {
    (
        first.0.min(second.0),
        first.1.min(second.1),
        first.2.max(second.2),
        first.3.max(second.3),
        first.4.max(second.4),
    )
}

fn play(kinds: [&str; 2], acts: &[Act]) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let [first, second] = kinds.map(|kind| kind.parse::<AnyPolicy>().expect("a policy"));
    let limiter: RateLimiter<Two, _> = RateLimiter::with_clock(first.and(second), clock.clone());
    let mut history = Vec::new();
    // The unsettled estimates: when they will be settled, and their indices in the history.
    let mut open = Vec::new();
    let each = |history: &[Act]| [0, 1].map(|part| alone(kinds[part], part, history));
    let due_in = |history: &[Act], n: u32| {
        let [first, second] = each(history).map(|alone| told(alone.try_acquire_many(n)));
        first.max(second)
    };
    for (index, &act) in acts.iter().enumerate() {
        let context = format!("{kinds:?}, {index}: {act:?}");
        match act {
            Act::Pass(nanos) => clock.advance(Duration::from_nanos(nanos)),
            Act::Take(n) | Act::Estimate(n, ..) => {
                let expected = due_in(&history, n);
                let found = match act {
                    Act::Estimate(_, used, later) => {
                        let estimate = estimate(&limiter, n);
                        let found = estimate.as_ref().err().copied();
                        open.extend(estimate.ok().map(|it| (index + later, it, used, history.len())));
                        told(found.map_or(Ok(()), Err))
                    }
                    _ => told(limiter.try_acquire_many(n)),
                };
                prop_assert_eq!(found, expected, "{}", context);
                if found.is_zero() {
                    history.push(Act::Take(n));
                }
            }
            Act::Wait(n) => {
                let expected = due_in(&history, n);
                let mut reservation = match limiter.reserve(n) {
                    Ok(reservation) => reservation,
                    Err(never) => {
                        prop_assert_eq!(told(Err::<(), _>(never)), expected, "{}", context);
                        continue;
                    }
                };
                prop_assert_eq!(reservation.due_in(), expected, "{}", context);
                if expected < Duration::from_secs(60) {
                    if !expected.is_zero() {
                        clock.advance(expected - Duration::from_nanos(1));
                        prop_assert!(!reservation.claim(), "{}", context);
                        clock.advance(Duration::from_nanos(1));
                    }
                    prop_assert!(reservation.claim(), "{}", context);
                    history.push(Act::Pass(expected.as_nanos().try_into().expect("short")));
                    history.push(Act::Take(n));
                    reservation.settle(n);
                }
            }
            Act::Pause(span, keeps) => limiter.pause(pause(span, keeps)),
            Act::Resume => {
                limiter.resume();
            }
            Act::Rate(part, rate) => {
                limiter.change(Change::rate(Rate::per_second(rate)).part(part)).expect("a rate");
            }
            Act::Debit(n) => limiter.debit(n),
        }
        if !matches!(act, Act::Take(_) | Act::Wait(_) | Act::Estimate(..)) {
            history.push(act);
        }
        while let Some(due) = open.iter().position(|(at, ..)| *at <= index) {
            let (_, estimate, used, noted) = open.swap_remove(due);
            estimate.settle(used);
            history[noted] = Act::Take(used);
        }
        let expected = each(&history).map(|alone| numbers(alone.status()));
        prop_assert_eq!(numbers(limiter.status()), stricter(expected), "{} {:?}", context, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn each_of_the_two_goes_on_after_a_pause_as_it_would_alone(
        first in 0..KINDS.len(), second in 0..KINDS.len(), mut acts in some_acts(), estimates: bool,
    ) {
        // After a debit or a change of terms, undone grants may give back less. In the window that
        // a resume has charged, grants of an earlier window give back nothing.
        let undoes = estimates && first.max(second) < EXACT;
        acts.retain(|act| match act {
            Act::Estimate(..) => undoes,
            Act::Rate(..) | Act::Debit(_) | Act::Resume => !undoes,
            _ => true,
        });
        if undoes {
            // The queue does not see a plain request: it knows only the least room.
            for act in &mut acts {
                if let Act::Take(n) = *act {
                    *act = Act::Estimate(n, n, 0);
                }
            }
        }
        play([KINDS[first], KINDS[second]], &acts)?;
    }
}

/// An act on composites, one paused and one not.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Pass(u64),
    /// Takes from the paused composite, or from the other one.
    Take(bool, u32),
    Pause(u64, bool),
    Resume,
    PauseMembers(u64, bool),
    ResumeMembers,
}

fn some_asks() -> impl Strategy<Value = Vec<Ask>> {
    let millis = || prop_oneof![1..900u64, Just(250u64), 1_000..4_000u64];
    let ask = prop_oneof![
        6 => millis().prop_map(Ask::Pass),
        8 => (any::<bool>(), 1u32..6).prop_map(|(paused, n)| Ask::Take(paused, n)),
        3 => (millis(), any::<bool>()).prop_map(|(span, keeps)| Ask::Pause(span, keeps)),
        1 => Just(Ask::Resume),
        1 => (millis(), any::<bool>()).prop_map(|(span, keeps)| Ask::PauseMembers(span, keeps)),
        1 => Just(Ask::ResumeMembers),
    ];
    vec(ask, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A composite with one limiter of two policies does what a composite with a plain limiter for
    /// each policy does.
    #[test]
    fn a_member_of_two_policies_is_two_members(
        first in 0..KINDS.len(), second in 0..KINDS.len(), asks in some_asks(),
    ) {
        let clock = ManualClock::new();
        let kinds = [KINDS[first], KINDS[second]];
        let policy = |kind: &str| kind.parse::<AnyPolicy>().expect("a policy");
        let plain = kinds.map(|kind| RateLimiter::with_clock(policy(kind), clock.clone()));
        let both = RateLimiter::with_clock(policy(kinds[0]).and(policy(kinds[1])), clock.clone());
        // The second composite of each pair is paused.
        let one = [0, 1].map(|_| AllOf::new("both", &both));
        let two = [0, 1].map(|_| AllOf::new("first", &plain[0]).with("second", &plain[1]));
        let told = |answer: Result<_, AllRefusal>| {
            answer.err().map_or(Some(Duration::ZERO), |refusal| refusal.retry_after())
        };
        for (index, &ask) in asks.iter().enumerate() {
            match ask {
                Ask::Pass(millis) => clock.advance(Duration::from_millis(millis)),
                Ask::Take(paused, n) => {
                    let which = usize::from(paused);
                    prop_assert_eq!(
                        told(one[which].try_acquire_many(n)),
                        told(two[which].try_acquire_many(n)),
                        "{:?} {}: {:?}", kinds, index, ask
                    );
                }
                Ask::Pause(span, keeps) => [&one[1], &two[1]].iter().for_each(|all| all.pause(pause(span, keeps))),
                Ask::Resume => assert_eq!(one[1].resume(), two[1].resume()),
                Ask::PauseMembers(span, keeps) => {
                    both.pause(pause(span, keeps));
                    plain.iter().for_each(|limiter| limiter.pause(pause(span, keeps)));
                }
                Ask::ResumeMembers => {
                    let resumed = both.resume();
                    plain.iter().for_each(|limiter| assert_eq!(limiter.resume(), resumed));
                }
            }
            let expected = plain.each_ref().map(|limiter| numbers(limiter.status()));
            prop_assert_eq!(numbers(both.status()), stricter(expected), "{:?} {}: {:?}", kinds, index, ask);
        }
    }
}

/// Bug: the bucket filled during a pause, and the grants were spaced by the rate of the first
/// policy only.
#[test]
fn the_order_of_two_policies_does_not_matter_after_a_pause() {
    let (bucket, window) = ("token_bucket 10/s burst 10", "fixed_window 60/1m");
    for kinds in [[bucket, window], [window, bucket]] {
        let clock = ManualClock::new();
        let [first, second] = kinds.map(|kind| kind.parse::<AnyPolicy>().expect("a policy"));
        let limiter = RateLimiter::with_clock(first.and(second), clock.clone());
        limiter.pause(pause(5_000, false));
        clock.advance(Duration::from_secs(15));
        // In the window one permit accrues each second. The bucket is full after one second.
        let at_once = (0..100).filter(|_| limiter.try_acquire().is_ok()).count();
        assert_eq!(at_once, 10, "{kinds:?}");
        assert_eq!(limiter.status().next_in, Duration::from_secs(1), "{kinds:?}");
        // The stored permits of both are kept until then.
        limiter.pause(pause(5_000, false));
        assert!(limiter.resume());
        assert_eq!(limiter.status().next_in, Duration::from_secs(1), "{kinds:?}");
    }
}
