//! Lowering the available permits has the same effect as requests for one permit each, one after
//! another.

use std::error::Error;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change, Keep, PolicyStatus};
use tidegate::{
    Both, FixedWindow, LeakyBucket, Nanos, Policy, Rate, SlidingEstimate, SlidingLog, SlidingWindow,
    SmoothBursty, SmoothWarmingUp, TokenBucket,
};

const SECOND: u64 = 1_000_000_000;

/// Policies of all kinds, with at most a few hundred permits.
fn policies(rate: Rate) -> Vec<AnyPolicy> {
    let burst = Duration::from_millis(700);
    let buckets = [
        Some(AnyPolicy::from(SmoothBursty::new(rate))),
        SmoothBursty::new(rate).try_max_burst(burst).ok().map(|policy| policy.start_full().into()),
        Some(SmoothWarmingUp::new(rate, Duration::from_secs(4)).into()),
        Some(LeakyBucket::new(rate).into()),
        Some(LeakyBucket::new(rate).nodelay(3).into()),
    ];
    let tokens = [
        TokenBucket::try_new(rate, 7).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 0).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 7).and_then(TokenBucket::interval_refill).map(AnyPolicy::from),
    ];
    let windows = [
        FixedWindow::try_new(rate).map(AnyPolicy::from),
        FixedWindow::try_new(rate).map(|policy| policy.from_first_grant().into()),
        SlidingWindow::try_new(rate, 3).map(AnyPolicy::from),
        SlidingEstimate::try_new(rate).map(AnyPolicy::from),
        SlidingLog::try_new(rate).and_then(|log| log.with_capacity(60)).map(AnyPolicy::from),
    ];
    windows.into_iter().chain(tokens).flatten().chain(buckets.into_iter().flatten()).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Pass(u64),
    Take(u32),
    /// Undoes the newest grant.
    Undo,
    Refund(u32),
    Debit(u32),
    Change(u64, Keep),
    KeepAtMost(u64),
}

fn acts(most: u64) -> impl Strategy<Value = Vec<Act>> {
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)];
    let act = prop_oneof![
        4 => (0..2 * SECOND).prop_map(Act::Pass),
        1 => (0..4_u64).prop_map(Act::Pass),
        4 => (1_u32..6).prop_map(Act::Take),
        1 => Just(Act::Undo),
        1 => (0_u32..6).prop_map(Act::Refund),
        1 => (0_u32..6).prop_map(Act::Debit),
        1 => (0..=most, keep).prop_map(|(permits, keep)| Act::Change(permits, keep)),
        4 => prop_oneof![0_u64..6, 0..=most, Just(u64::MAX)].prop_map(Act::KeepAtMost),
    ];
    vec(act, 1..40)
}

/// Takes single permits until at most `permits` are left: slow and obvious.
fn take_down_to<P: Policy>(policy: &P, state: &P::State, at: Nanos, permits: u64) -> u64 {
    let mut taken = 0;
    loop {
        let PolicyStatus { limit, available, .. } = policy.status(state, at);
        if limit == u64::MAX || available <= permits {
            return taken;
        }
        assert!(policy.try_acquire(state, at, 1).is_ok(), "{available} are available");
        taken += 1;
    }
}

/// Returns everything that can be observed of a state.
fn seen<P: Policy>(policy: &P, state: &P::State, at: Nanos) -> (PolicyStatus, Vec<Nanos>) {
    (policy.status(state, at), (1..12).map(|n| policy.ready_at(state, at, 0, n)).collect())
}

/// Plays the acts with a policy twice: once directly, and once with single permits.
fn play<P: Policy + Clone>(policy: &P, acts: &[Act], whole: bool) -> Result<(), TestCaseError> {
    let policies = [policy.clone(), policy.clone()];
    let mut at = Nanos::new(SECOND);
    let states = policies.each_ref().map(|policy| policy.start(at));
    let mut charges = [Vec::new(), Vec::new()];
    for act in acts {
        let mut answers = Vec::new();
        for (index, charges) in charges.iter_mut().enumerate() {
            let (policy, state) = (&policies[index], &states[index]);
            answers.push(match *act {
                Act::Pass(span) => {
                    at = if index == 0 { at.saturating_add(Nanos::new(span)) } else { at };
                    0
                }
                Act::Take(n) => policy.try_acquire(state, at, n).map_or(0, |charge| {
                    charges.push(charge);
                    1
                }),
                Act::Undo => charges.pop().map_or(0, |charge| {
                    policy.undo(state, at, charge, 0);
                    1
                }),
                Act::Refund(n) => {
                    policy.refund(state, at, n);
                    0
                }
                Act::Debit(n) => {
                    policy.debit(state, at, n);
                    0
                }
                Act::Change(_, _) if whole => 0,
                Act::Change(permits, keep) => {
                    let rate = if permits == 0 { Rate::ZERO } else { Rate::per_second(permits) };
                    charges.clear();
                    u64::from(policy.change(state, at, Change::rate(rate).keep(keep)).is_ok())
                }
                Act::KeepAtMost(permits) if index == 0 => {
                    let before = policy.status(state, at);
                    let taken = policy.keep_at_most(state, at, permits);
                    let after = policy.status(state, at);
                    prop_assert!(after.available <= before.available, "{:?}", policy);
                    if before.limit < u64::MAX {
                        prop_assert_eq!(after.available, before.available.min(permits), "{:?}", policy);
                        prop_assert_eq!(taken, before.available - after.available, "{:?}", policy);
                    }
                    prop_assert_eq!(policy.keep_at_most(state, at, permits), 0);
                    taken
                }
                Act::KeepAtMost(permits) => take_down_to(policy, state, at, permits),
            });
        }
        prop_assert_eq!(answers[0], answers[1], "{:?} {:?}", policies[0], act);
        let [first, second] = [0, 1].map(|index| seen(&policies[index], &states[index], at));
        prop_assert_eq!(first, second, "{:?} {:?}", policies[0], act);
    }
    Ok(())
}

proptest! {
    #[test]
    fn it_does_what_single_requests_do(
        permits in 1_u64..50, millis in prop_oneof![Just(1000_u64), 1_u64..3000], acts in acts(60),
    ) {
        let rate = Rate::new(permits, Duration::from_millis(millis))?;
        for policy in policies(rate) {
            play(&policy, &acts, false)?;
        }
    }

    /// The cost of many permits is the sum of their single costs where the interval is whole.
    #[test]
    fn two_policies_do_what_single_requests_do(
        pair in (0_usize..13, 0_usize..13), permits in prop::sample::select(vec![1_u64, 2, 4, 5, 10, 20]),
        acts in acts(30),
    ) {
        let (fast, slow) = (policies(Rate::per_second(permits)), policies(Rate::per_minute(30)));
        let policy = Both::new(fast[pair.0 % fast.len()].clone(), slow[pair.1 % slow.len()].clone());
        play(&policy, &acts, true)?;
        let third = Both::new(policy, TokenBucket::new(Rate::per_second(5), 9));
        play(&third, &acts, true)?;
    }
}

/// Sums and products of such numbers overflow.
#[test]
fn numbers_of_any_size_are_lowered() -> Result<(), Box<dyn Error>> {
    let at = Nanos::new(1 << 60);
    let huge = Rate::per_second(1 << 34);
    for policy in [
        AnyPolicy::from(SmoothBursty::new(huge).max_burst(SmoothBursty::MAX_BURST)),
        TokenBucket::new(Rate::per_second(1 << 33), u32::MAX).into(),
        FixedWindow::new(Rate::per_second(u64::from(u32::MAX))).into(),
        SlidingWindow::new(Rate::per_second(u64::from(u32::MAX)), 3).into(),
        SlidingEstimate::new(Rate::per_second(u64::from(u32::MAX))).into(),
        SmoothBursty::new(Rate::from_per_second(1e-200)?).into(),
        SmoothWarmingUp::new(Rate::from_per_second(1e-200)?, Duration::from_secs(1)).into(),
        LeakyBucket::new(Rate::from_per_second(1e-200)?).into(),
    ] {
        let state = policy.start(Nanos::ZERO);
        let mut there = policy.status(&state, at).available;
        for permits in [u64::MAX, u64::from(u32::MAX), 1 << 20, 5, 1, 0] {
            let taken = policy.keep_at_most(&state, at, permits);
            there -= taken;
            assert_eq!(policy.status(&state, at).available, there, "{policy:?}");
            assert!(there <= permits, "{policy:?}");
        }
        assert!(policy.try_acquire(&state, at, 1).is_err(), "{policy:?}");
    }
    let both = SmoothBursty::new(huge).max_burst(SmoothBursty::MAX_BURST);
    let both = Both::new(both.clone(), both);
    let state = both.start(Nanos::ZERO);
    both.keep_at_most(&state, at, 5);
    assert_eq!(both.status(&state, at).available, 5);
    Ok(())
}

/// The policy with more permits keeps its surplus over the other.
#[test]
fn a_second_policy_is_charged_as_many() {
    let (second, minute) = (Rate::per_second(10), Rate::per_minute(100));
    let both = Both::new(TokenBucket::new(second, 10), FixedWindow::new(minute));
    let state = both.start(Nanos::ZERO);
    assert_eq!(both.keep_at_most(&state, Nanos::ZERO, 3), 7);
    assert_eq!(both.status(&state, Nanos::ZERO).available, 3);
    let later = Nanos::new(SECOND);
    assert_eq!(both.status(&state, later).available, 10);
    let mut left = 100 - 7;
    for second in 1..30 {
        let at = Nanos::new(second * SECOND);
        left -= (0..10).filter(|_| both.try_acquire(&state, at, 1).is_ok()).count();
    }
    assert_eq!(left, 0);
}

/// A user-defined policy does not implement the operation.
#[test]
fn a_policy_that_has_no_step_of_its_own_is_lowered() {
    #[derive(Debug)]
    struct Foreign(TokenBucket);

    impl Policy for Foreign {
        type State = <TokenBucket as Policy>::State;
        type Charge = <TokenBucket as Policy>::Charge;

        fn start(&self, now: Nanos) -> Self::State {
            self.0.start(now)
        }

        fn try_acquire(
            &self,
            state: &Self::State,
            at: Nanos,
            n: u32,
        ) -> Result<Self::Charge, tidegate::Refusal> {
            self.0.try_acquire(state, at, n)
        }

        fn check(&self, n: u32) -> Result<(), tidegate::Refusal> {
            self.0.check(n)
        }

        fn weight(&self, n: u32) -> u64 {
            self.0.weight(n)
        }

        fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
            self.0.ready_at(state, at, ahead, n)
        }

        fn undo(&self, state: &Self::State, at: Nanos, charge: Self::Charge, most: u64) -> u64 {
            self.0.undo(state, at, charge, most)
        }

        fn refund(&self, state: &Self::State, at: Nanos, n: u32) -> u64 {
            self.0.refund(state, at, n)
        }

        fn change(
            &self,
            state: &Self::State,
            at: Nanos,
            change: Change,
        ) -> Result<u64, tidegate::PolicyError> {
            self.0.change(state, at, change)
        }

        fn rate(&self) -> Rate {
            self.0.rate()
        }

        fn status(&self, state: &Self::State, at: Nanos) -> PolicyStatus {
            self.0.status(state, at)
        }
    }

    let policy = Foreign(TokenBucket::new(Rate::per_second(5), 10));
    let state = policy.start(Nanos::ZERO);
    assert_eq!(policy.keep_at_most(&state, Nanos::ZERO, 4), 6);
    assert_eq!(policy.keep_at_most(&state, Nanos::ZERO, 4), 0);
    assert_eq!(policy.keep_at_most(&state, Nanos::ZERO, 0), 4);
}
