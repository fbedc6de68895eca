//! A clone decides as its original does, even on a state that went through changes together with
//! the original.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{Change, Keep};
use tidegate::{AnyPolicy, Nanos, Policy, Rate, Refusal};

const POLICIES: [&str; 10] = [
    "token_bucket 3/s burst 4",
    "token_bucket 3/s burst 4 interval_refill",
    "leaky_bucket 3/s nodelay 2",
    "fixed_window 3/s",
    "fixed_window 3/s from_first_grant",
    "sliding_window 4/s cells 4",
    "sliding_estimate 3/s",
    "sliding_log 3/s with_capacity 8",
    "smooth_bursty 3/s",
    "smooth_warming_up 3/s warm_up 2s",
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Try(u32),
    Pass(u64),
    Refund(u32),
    Debit(u32),
    Change(Option<Rate>, Option<Keep>),
}

fn some_steps() -> impl Strategy<Value = Vec<Step>> {
    let rate = prop_oneof![
        4 => (1u64..9).prop_map(Rate::per_second),
        2 => (9u64..90).prop_map(Rate::per_minute),
        1 => Just(Rate::ZERO),
        1 => Just(Rate::UNLIMITED),
    ];
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)];
    let step = prop_oneof![
        5 => (1u32..5).prop_map(Step::Try),
        5 => (0u64..2_000_000_000).prop_map(Step::Pass),
        1 => (1u32..3).prop_map(Step::Refund),
        1 => (1u32..3).prop_map(Step::Debit),
        2 => (proptest::option::weighted(0.9, rate), proptest::option::of(keep))
            .prop_map(|(rate, keep)| Step::Change(rate, keep)),
    ];
    vec(step, 1..60)
}

proptest! {
    #[test]
    fn a_clone_goes_on_where_the_policy_was(which in 0..POLICIES.len(), steps in some_steps()) {
        let text = POLICIES[which];
        let policy: AnyPolicy = text.parse()?;
        let mut copy = policy.clone();
        let mut now = Nanos::new(5_000_000_000);
        let (state, copied) = (policy.start(now), copy.start(now));
        for step in steps {
            copy = copy.clone();
            let both = [(&policy, &state), (&copy, &copied)];
            let tell = |refused: Result<_, Refusal>| refused.map(drop);
            match step {
                Step::Try(n) => {
                    let [one, other] = both.map(|(policy, state)| tell(policy.try_acquire(state, now, n)));
                    prop_assert_eq!(one, other, "{}", text);
                }
                Step::Pass(nanos) => now = now.saturating_add(Nanos::new(nanos)),
                Step::Refund(n) => drop(both.map(|(policy, state)| policy.refund(state, now, n))),
                Step::Debit(n) => drop(both.map(|(policy, state)| policy.debit(state, now, n))),
                Step::Change(rate, keep) => {
                    let change = rate.map_or(Change::default(), Change::rate);
                    let change = keep.map_or(change, |keep| change.keep(keep));
                    let [one, other] = both.map(|(policy, state)| policy.change(state, now, change));
                    prop_assert_eq!(one, other, "{}", text);
                }
            }
            let [one, other] = both.map(|(policy, state)| (policy.status(state, now), policy.ready_at(state, now, 0, 1)));
            prop_assert_eq!(one, other, "{}", text);
            prop_assert_eq!(policy.rate(), copy.rate());
        }
    }
}
