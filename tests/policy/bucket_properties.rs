//! The token bucket and the leaky bucket against a simple model: a number of permits with its
//! fraction, in exact integers. Times (some go back), sizes, refunds and changes are random. All
//! times are arguments.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::state::BucketState;
use tidegate::policy::{Change, Keep};
use tidegate::{LeakyBucket, Nanos, Policy, Rate, Refusal, TokenBucket};

const SECOND: u64 = 1_000_000_000;
const MINUTE: i128 = 60_000_000_000;

/// Every period in the tests divides a minute. A permit divided into this many parts is therefore
/// never divided further: neither a tick, which is a sixteenth of a nanosecond, nor any rate leaves
/// a fraction.
const PARTS: i128 = 16 * MINUTE;

// The reference model

/// Permits per period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Flow {
    permits: i128,
    period: i128,
}

impl Flow {
    const ZERO: Flow = Flow { permits: 0, period: MINUTE };

    fn rate(self) -> Result<Rate, TestCaseError> {
        if self.permits == 0 {
            return Ok(Rate::ZERO);
        }
        let (permits, period) = (u64::try_from(self.permits)?, u64::try_from(self.period)?);
        Ok(Rate::new(permits, Duration::from_nanos(period))?)
    }

    /// Returns the parts that accrue in a sixteenth of a nanosecond.
    fn tick(self) -> i128 {
        self.permits * MINUTE / self.period
    }

    /// Returns whether permits accrue a whole number of nanoseconds apart. At rate zero none
    /// accrue, and permits are stored in units of 2^-28.
    fn is_whole(self) -> bool {
        self.permits == 0 || self.period % self.permits == 0
    }

    /// Returns by how much a bucket is larger than its burst, to make up for rounding.
    fn slack(self, burst: i128) -> i128 {
        if self.is_whole() || burst == 0 { 0 } else { ((burst + 15).min(16 * 50) + 1) * self.tick() }
    }

    /// Returns the loss when a number is rounded to whole ticks once.
    fn rounding(self) -> i128 {
        if self.permits == 0 { (PARTS >> 28) + 1 } else { self.tick() }
    }
}

#[derive(Clone, Debug)]
struct Model {
    flow: Flow,
    /// The last flow above zero: at rate zero a bucket keeps its size.
    kept: Flow,
    burst: i128,
    /// The number of permits at the start; `None` is a full bucket.
    start: Option<u32>,
    /// In nanoseconds.
    tolerance: i128,
    /// Permits accrue in steps; one step is at this time.
    steps: Option<i128>,
    /// A request larger than the bucket waits for its own cost.
    grows_to_fit: bool,
    /// The number of parts at the time `at` of the bucket's own clock.
    stock: i128,
    at: i128,
    /// By how much the policy may have more, or less, due to documented rounding. Both are zero
    /// where the interval is whole.
    more: i128,
    less: i128,
}

impl Model {
    fn new(flow: Flow, burst: u32, now: i128) -> Model {
        let burst = i128::from(burst);
        let mut model = Model {
            flow,
            kept: flow,
            burst,
            start: None,
            tolerance: 0,
            steps: None,
            grows_to_fit: false,
            stock: 0,
            at: now,
            more: flow.slack(burst),
            less: 0,
        };
        model.stock = model.full();
        model
    }

    fn starting_with(self, permits: u32) -> Model {
        Model { start: Some(permits), stock: i128::from(permits) * PARTS, ..self }
    }

    fn full(&self) -> i128 {
        self.burst * PARTS + self.tolerance * 16 * self.flow.tick()
    }

    /// Returns the time of the bucket's own clock: it ticks once per step, and never if nothing
    /// accrues.
    fn clock(&self, at: i128) -> i128 {
        match self.steps {
            _ if self.flow.permits == 0 => 0,
            Some(phase) => at - (at - phase).rem_euclid(self.flow.period),
            None => at,
        }
    }

    /// Returns the parts that would be available if nothing had overflowed since the last grant.
    fn endless(&self, at: i128) -> i128 {
        self.stock + (self.clock(at) - self.at) * 16 * self.inflow().tick()
    }

    /// A step adds no more than fits; that matters where the clock goes back.
    fn inflow(&self) -> Flow {
        let permits =
            if self.steps.is_some() { self.flow.permits.min(self.burst) } else { self.flow.permits };
        Flow { permits, ..self.flow }
    }

    /// Returns the parts available to a request of `n` permits.
    fn there(&self, at: i128, n: i128) -> i128 {
        let room = if self.grows_to_fit { self.full().max(n * PARTS) } else { self.full() };
        self.endless(at).min(room)
    }

    fn set(&mut self, at: i128, stock: i128) {
        (self.stock, self.at) = (stock, self.clock(at));
    }

    fn grant(&mut self, at: i128, n: u32) {
        let n = i128::from(n);
        self.set(at, self.there(at, n) - n * PARTS);
        self.less += if self.kept.is_whole() { 0 } else { self.kept.rounding() };
    }

    fn refund(&mut self, at: i128, n: u32) {
        let endless = self.endless(at);
        self.set(at, (endless + i128::from(n) * PARTS).min(self.full()).max(endless));
        self.less += if self.kept.is_whole() { 0 } else { self.kept.rounding() };
    }

    fn change(&mut self, at: i128, flow: Flow, burst: u32, keep: Keep) {
        // What has accrued for a request that is larger than the bucket stays, unless the bucket
        // changes.
        let holds_more = self.grows_to_fit && i128::from(burst) == self.burst;
        let (stock, full) = (if holds_more { self.endless(at) } else { self.there(at, 0) }, self.full());
        // The slack of the old bucket, in which everything was counted, may count as rounding too.
        let slack = self.kept.slack(self.burst);
        (self.flow, self.burst) = (flow, burst.into());
        self.kept = if flow.permits == 0 { self.kept } else { flow };
        let new = self.full();
        let share = |parts: i128| if full == 0 { 0 } else { (parts * new).div_euclid(full) };
        let stock = match keep {
            Keep::Count | Keep::Ratio if holds_more => stock,
            Keep::Count => stock.min(new),
            Keep::Ratio => share(stock),
            Keep::Nothing => self.start.map_or(new, |permits| new.min(i128::from(permits) * PARTS)),
        };
        match keep {
            Keep::Count => {}
            Keep::Ratio => (self.more, self.less) = (share(self.more) + 1, share(self.less + slack) + 1),
            Keep::Nothing => (self.more, self.less) = (0, 0),
        }
        self.more = self.more.max(self.kept.slack(self.burst));
        self.less += self.kept.rounding() + 1;
        self.set(at, stock);
    }
}

// Calls

#[derive(Clone, Debug)]
enum Call {
    Pass(u64),
    Back(u64),
    Try(u32),
    /// Waits exactly until the request is due.
    Wait(u32),
    /// This many requests wait in the queue, each for one permit, and then one request for more.
    Queue(u32, u32),
    /// Takes one by one every permit that the status reports.
    TakeAll,
    /// Takes all these at one time, and undoes them in a different order.
    Undo(Vec<u32>, usize),
    Refund(u32),
    Change(Flow, u32, Keep),
    /// Charges this many permits, whether they are available or not.
    Debit(u32),
    /// Takes the first number of permits, and gives back all but the second.
    Settle(u32, u32),
}

fn some_period() -> impl Strategy<Value = i128> {
    prop_oneof![Just(MINUTE), Just(MINUTE / 60), Just(MINUTE / 600)]
}

fn some_whole_flow() -> impl Strategy<Value = Flow> {
    let permits = prop_oneof![Just(1), Just(2), Just(5), Just(10), Just(100), Just(1000)];
    let period = prop_oneof![3 => some_period(), 1 => Just(4000)];
    (permits, period).prop_map(|(permits, period)| Flow { permits, period })
}

/// Not so fast that a permit costs only a few ticks; see `tests/policy/cases.rs`.
fn some_flow() -> impl Strategy<Value = Flow> {
    let any = (1i128..3000, some_period()).prop_map(|(permits, period)| Flow { permits, period });
    prop_oneof![3 => any, 1 => some_whole_flow()]
}

/// Times that are long and short compared with the interval of a flow, in nanoseconds.
fn some_span() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0u64..3000, 0..2 * SECOND, 0..100 * SECOND, Just(SECOND), Just(60 * SECOND)]
}

fn some_keep() -> impl Strategy<Value = Keep> {
    prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)]
}

fn some_calls(changes: impl Strategy<Value = Flow> + 'static) -> impl Strategy<Value = Vec<Call>> {
    let n = || prop_oneof![3 => Just(1), 3 => 1u32..8, 1 => 1u32..60];
    let call = prop_oneof![
        6 => some_span().prop_map(Call::Pass),
        2 => some_span().prop_map(|span| Call::Back(span / 8)),
        6 => n().prop_map(Call::Try),
        4 => n().prop_map(Call::Wait),
        2 => (1u32..20, n()).prop_map(|(ahead, n)| Call::Queue(ahead, n)),
        2 => Just(Call::TakeAll),
        2 => (vec(n(), 1..5), any::<usize>()).prop_map(|(sizes, turn)| Call::Undo(sizes, turn)),
        2 => n().prop_map(Call::Refund),
        1 => n().prop_map(Call::Debit),
        2 => (n(), 0u32..8).prop_map(|(n, used)| Call::Settle(n, used)),
        2 => (changes, 0u32..40, some_keep()).prop_map(|(flow, burst, keep)| Call::Change(flow, burst, keep)),
    ];
    vec(call, 1..60)
}

// The policy and its model

/// Permits that passed, granted or, if negative, given back; and what had accrued by then.
struct Passed {
    came_in: i128,
    permits: i128,
}

struct Pair<'a, P: Policy<State = BucketState>> {
    policy: &'a P,
    state: BucketState,
    model: Model,
    now: Nanos,
    log: Vec<Passed>,
    /// The parts accrued since the start.
    came_in: i128,
    /// The largest size that the bucket had.
    fullest: i128,
    /// The parts that the bucket may hold in addition because of documented rounding.
    rounded: i128,
}

fn exact(at: Nanos) -> i128 {
    at.as_u64().into()
}

impl<'a, P: Policy<State = BucketState>> Pair<'a, P> {
    fn new(policy: &'a P, model: Model) -> Result<Self, TestCaseError> {
        let now = Nanos::new(u64::try_from(model.at)?);
        let mut model = model;
        model.at = model.clock(exact(now));
        let (state, fullest, rounded) = (policy.start(now), model.full(), model.more);
        Ok(Pair { policy, state, model, now, log: Vec::new(), came_in: 0, fullest, rounded })
    }

    fn go_to(&mut self, now: Nanos) {
        let ticked = self.model.clock(exact(now)) - self.model.clock(exact(self.now));
        self.came_in += ticked * 16 * self.model.inflow().tick();
        self.now = now;
    }

    fn ready_at(&self, ahead: u64, n: u32) -> Nanos {
        self.policy.ready_at(&self.state, self.now, ahead, n).max(self.now)
    }

    /// Returns all that the state predicts: the permits available now, and the times of the next
    /// ones.
    fn outlook(&self) -> Vec<Nanos> {
        let status = self.policy.status(&self.state, self.now);
        let available = Nanos::new(status.available);
        let mut outlook = vec![available, status.full_at.max(self.now)];
        // In a leaky bucket, a request larger than its capacity can observe a trace; see
        // `tests/policy/cases.rs`.
        let seen = |n: &u32| !self.model.grows_to_fit || i128::from(*n) <= self.model.burst;
        outlook.extend([1, 2, 3, 7, 30].iter().filter(|n| seen(n)).map(|n| self.ready_at(0, *n)));
        outlook
    }

    /// Tries now, compares the decision, and checks what a refusal reports.
    fn attempt(&mut self, n: u32) -> Result<Result<P::Charge, Refusal>, TestCaseError> {
        let at = exact(self.now);
        let (price, there) = (i128::from(n) * PARTS, self.model.there(at, n.into()));
        let (ready, before) = (self.ready_at(0, n), format!("{:?}", self.state));
        let got = self.policy.try_acquire(&self.state, self.now, n);
        let short = price - there;
        match got {
            Ok(_) => {
                prop_assert!(short <= self.model.more, "{short} parts too many");
                prop_assert_eq!(ready, self.now);
                self.model.grant(at, n);
                self.log.push(Passed { came_in: self.came_in, permits: n.into() });
            }
            Err(Refusal::Limited { retry_after }) => {
                prop_assert!(short + self.model.less > 0, "{} parts were left over", -short);
                let due = self.now.saturating_add(retry_after);
                prop_assert_eq!(ready, due);
                prop_assert!(due > self.now);
                if due != Nanos::MAX {
                    let early = Nanos::new(due.as_u64() - 1);
                    let told = self.policy.try_acquire(&self.state, early, n).err();
                    prop_assert_eq!(told, Some(Refusal::Limited { retry_after: Nanos::new(1) }));
                }
            }
            Err(_) => {
                let full = self.model.full();
                prop_assert!(price > full && !self.model.grows_to_fit);
            }
        }
        if got.is_err() {
            prop_assert_eq!(before, format!("{:?}", self.state));
        }
        Ok(got)
    }

    /// Waits until `n` permits are available, and takes them. Returns the time, or `None` if that
    /// is never.
    fn wait(&mut self, n: u32) -> Result<Option<Nanos>, TestCaseError> {
        let due = self.ready_at(0, n);
        if due == Nanos::MAX || self.policy.check(n).is_err() {
            prop_assert!(self.policy.try_acquire(&self.state, self.now, n).is_err());
            return Ok(None);
        }
        self.go_to(due);
        let got = self.attempt(n)?;
        prop_assert!(got.is_ok(), "unavailable when it was due: {:?}", got);
        Ok(Some(due))
    }

    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        let at = exact(self.now);
        match *call {
            Call::Pass(span) => self.go_to(self.now.saturating_add(Nanos::new(span))),
            Call::Back(span) => self.go_to(Nanos::new(self.now.as_u64().saturating_sub(span))),
            Call::Try(n) => drop(self.attempt(n)?),
            Call::Wait(n) => drop(self.wait(n)?),
            Call::Queue(ahead, n) => {
                let somebody_waits = self.ready_at(0, 1) > self.now;
                // Requests that arrive one by one take the permits of a step; see
                // `tests/policy/cases.rs`.
                if self.model.steps.is_none() && somebody_waits {
                    let weight = self.policy.weight(1).saturating_mul(ahead.into());
                    let told = self.ready_at(weight, n);
                    let mut got = Some(self.now);
                    for n in std::iter::repeat_n(1, ahead as usize).chain([n]) {
                        got = if got.is_some() { self.wait(n)? } else { None };
                    }
                    prop_assert!(got.is_none_or(|got| got == told), "predicted {told}, granted {got:?}");
                }
            }
            Call::TakeAll => {
                let status = self.policy.status(&self.state, self.now);
                let (available, tolerant) = (status.available, self.model.tolerance > 0);
                prop_assert!(tolerant || i128::from(status.limit) == self.model.burst);
                for taken in 0..available.min(200) {
                    let got = self.attempt(1)?;
                    // Each permit is rounded by a fraction of a tick where the interval is not
                    // whole.
                    prop_assert!(
                        got.is_ok() || self.model.more > 0,
                        "only {taken} of {available} were available"
                    );
                }
                if available <= 200 {
                    prop_assert!(self.attempt(1)?.is_err(), "more than {} were available", available);
                }
            }
            Call::Undo(ref sizes, turn) => {
                let (outlook, model, logged) = (self.outlook(), self.model.clone(), self.log.len());
                let before = format!("{:?}", self.state);
                let mut charges = Vec::new();
                for n in sizes {
                    // A request larger than a leaky bucket leaves a trace; see
                    // `tests/policy/cases.rs`.
                    if !self.model.grows_to_fit || i128::from(*n) <= self.model.burst {
                        charges.extend(self.attempt(*n)?.ok().map(|charge| (charge, u64::MAX)));
                    }
                }
                while !charges.is_empty() {
                    let (charge, lowest) = charges.remove(turn % charges.len());
                    let level = self.policy.undo(&self.state, self.now, charge, lowest);
                    charges.iter_mut().for_each(|(_, lowest)| *lowest = level.min(*lowest));
                }
                prop_assert_eq!(outlook, self.outlook());
                self.log.truncate(logged);
                let granted = self.model.stock != model.stock || self.model.at != model.at;
                self.model = model;
                if granted && before != format!("{:?}", self.state) {
                    // Not newest first: permits that have overflowed by now are lost, even if the
                    // clock goes back.
                    self.model.set(at, self.model.there(at, 0));
                }
            }
            Call::Refund(n) => {
                self.policy.refund(&self.state, self.now, n);
                let before = self.model.endless(at);
                self.model.refund(at, n);
                prop_assert!(self.model.endless(at) <= before.max(self.model.full()));
                self.log.push(Passed { came_in: self.came_in, permits: -i128::from(n) });
                let status = self.policy.status(&self.state, self.now);
                prop_assert!(status.available <= status.limit);
            }
            // Steps that add nothing report no negative balance either.
            Call::Debit(_) if self.model.steps.is_some() && self.model.burst == 0 => {}
            Call::Debit(n) => {
                self.policy.debit(&self.state, self.now, n);
                self.model.grant(at, n);
            }
            // A request larger than a leaky bucket leaves a trace; see `tests/policy/cases.rs`.
            Call::Settle(n, _) if self.model.grows_to_fit && i128::from(n) > self.model.burst => {}
            Call::Settle(n, used) => {
                let model = self.model.clone();
                let Ok(charge) = self.attempt(n)? else { return Ok(()) };
                let unused = self.policy.unspent(charge, n, used);
                prop_assert_eq!(unused.is_some(), used < n);
                if let Some(unused) = unused {
                    self.policy.undo(&self.state, self.now, unused, u64::MAX);
                    self.log.pop();
                    self.model = model;
                    if used > 0 {
                        self.model.grant(at, used);
                        self.log.push(Passed { came_in: self.came_in, permits: used.into() });
                    }
                }
            }
            Call::Change(flow, burst, keep) => {
                // For a negative balance after a change, see `tests/policy/cases.rs`. It occurs
                // only if the clock goes back.
                let in_debt = self.model.endless(at) < 0;
                if in_debt {
                    return Ok(());
                }
                let change = Change::rate(flow.rate()?).burst(burst).keep(keep);
                self.policy.change(&self.state, self.now, change)?;
                self.model.change(at, flow, burst, keep);
                self.fullest = self.fullest.max(self.model.full());
                // Whole stored permits remain whole, so each may be rounded up by a tick.
                self.rounded = self.rounded.max(self.model.more) + i128::from(burst) * self.model.kept.tick();
                prop_assert_eq!(self.policy.rate(), flow.rate()?);
                // `Keep::Ratio` may give a larger number, and a new bucket starts anew: both reset
                // the bound.
                if keep != Keep::Count {
                    self.bounded()?;
                    self.log.clear();
                    (self.fullest, self.rounded) = (self.model.full(), self.model.more);
                }
            }
        }
        Ok(())
    }

    /// The permits granted in any stretch are no more than the burst and the permits accrued
    /// meanwhile.
    fn bounded(&self) -> Result<(), TestCaseError> {
        for (index, first) in self.log.iter().enumerate().filter(|(_, first)| first.permits > 0) {
            let mut permits = 0;
            for last in &self.log[index..] {
                permits += last.permits;
                // In a leaky bucket a large request waits for its own cost.
                let fullest = match self.model.grows_to_fit {
                    true => self.fullest.max(first.permits * PARTS),
                    false => self.fullest,
                };
                let most = fullest + self.rounded + last.came_in - first.came_in;
                prop_assert!(permits * PARTS <= most || last.permits < 0, "{permits} permits, {most} parts");
            }
        }
        Ok(())
    }
}

fn agree<P: Policy<State = BucketState>>(
    policy: &P,
    model: Model,
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(policy, model)?;
    for call in calls {
        pair.call(call)?;
    }
    pair.bounded()
}

const START: i128 = 1000 * MINUTE + 123_456_789;

/// Replaces the changes in the calls.
fn changing(calls: Vec<Call>, new: impl Fn(Flow, u32, Keep) -> Call) -> Vec<Call> {
    let change = |call| match call {
        Call::Change(flow, burst, keep) => new(flow, burst, keep),
        call => call,
    };
    calls.into_iter().map(change).collect()
}

fn or_zero(flow: impl Strategy<Value = Flow> + 'static) -> impl Strategy<Value = Flow> {
    prop_oneof![4 => flow, 1 => Just(Flow::ZERO)]
}

proptest! {
    /// Decisions equal exact arithmetic, to the nanosecond.
    #[test]
    fn a_token_bucket_of_whole_intervals_is_exact(
        flow in some_whole_flow(), burst in 0u32..40, stock in 0u32..40, calls in some_calls(some_whole_flow()),
    ) {
        // Without changes, because a new interval may divide the stored permits.
        let calls: Vec<_> = calls.into_iter().filter(|call| !matches!(call, Call::Change(..))).collect();
        let model = Model::new(flow, burst, START).starting_with(stock.min(burst));
        let policy = TokenBucket::new(flow.rate()?, burst).start_with(stock.min(burst))?;
        agree(&policy, model, &calls)?;
    }

    #[test]
    fn a_token_bucket_does_what_an_obvious_one_does(
        flow in or_zero(some_flow()), burst in 0u32..40, empty: bool, calls in some_calls(or_zero(some_flow())),
    ) {
        let (mut model, mut policy) = (Model::new(flow, burst, START), TokenBucket::new(flow.rate()?, burst));
        if empty {
            model = model.starting_with(0);
            policy = policy.start_empty();
        }
        agree(&policy, model, &calls)?;
    }

    #[test]
    fn a_tolerance_is_a_burst_in_time(
        flow in some_whole_flow(), burst in 0u32..40, tolerance in some_span(), calls in some_calls(some_whole_flow()),
    ) {
        let mut model = Model::new(flow, burst, START);
        model.tolerance = tolerance.into();
        model.stock = model.full();
        let policy = TokenBucket::new(flow.rate()?, burst).tolerance(Duration::from_nanos(tolerance))?;
        // A share of a tolerance needs more digits than the model has.
        let calls = changing(calls, |flow, burst, _| Call::Change(flow, burst, Keep::Count));
        agree(&policy, model, &calls)?;
    }

    #[test]
    fn steps_bring_a_period_at_once(
        flow in some_flow(), burst in 0u32..40, calls in some_calls(or_zero(some_flow())),
    ) {
        let mut model = Model::new(flow, burst, START);
        model.steps = Some(0);
        agree(&TokenBucket::new(flow.rate()?, burst).interval_refill()?, model, &calls)?;
    }

    #[test]
    fn steps_are_at_the_wall_clocks_periods(
        flow in some_flow(), burst in 0u32..40, unix in 0..200 * SECOND, offset in 0..200 * SECOND,
        calls in some_calls(some_flow()),
    ) {
        // Not the shortest period, which is for whole intervals.
        let flow = Flow { period: flow.period.max(MINUTE / 600), ..flow };
        let mut model = Model::new(flow, burst, START);
        model.steps = Some(i128::from(offset) - i128::from(unix));
        let policy = TokenBucket::new(flow.rate()?, burst).at_wall_clock(Duration::from_nanos(offset))?;
        let policy = policy.with_epoch(Duration::from_nanos(unix));
        // The period stays, so that the steps do not move; see `tests/policy/cases.rs`.
        let calls = changing(calls, |new, burst, keep| Call::Change(Flow { period: flow.period, ..new }, burst, keep));
        agree(&policy, model, &calls)?;
    }

    #[test]
    fn a_leaky_bucket_does_what_an_obvious_one_does(
        flow in some_flow(), nodelay in 0u32..20, calls in some_calls(or_zero(some_flow())),
    ) {
        let mut model = Model::new(flow, nodelay + 1, START);
        model.grows_to_fit = true;
        // The permit of the request in progress is always available.
        let calls = changing(calls, |flow, burst, keep| {
            let burst = if burst % 2 == 0 { nodelay + 1 } else { burst };
            Call::Change(flow, burst, keep)
        });
        agree(&LeakyBucket::new(flow.rate()?).nodelay(nodelay), model, &calls)?;
    }
}

proptest! {
    /// A bucket without a limit grants everything; any limit set later starts with a full bucket.
    #[test]
    fn a_bucket_is_full_after_no_limit(flow in some_flow(), burst in 0u32..40, n in 1u32.., spans in vec(some_span(), 3)) {
        let policy = TokenBucket::new(flow.rate()?, burst).start_empty();
        let at = |passed: usize| Nanos::new(spans[..passed].iter().sum());
        let state = policy.start(at(0));
        policy.set_rate(&state, at(1), Rate::UNLIMITED);
        prop_assert!(policy.try_acquire(&state, at(2), n).is_ok());
        prop_assert_eq!(policy.status(&state, at(2)).available, u64::MAX);
        // For the exact time of a grant, see `tests/policy/cases.rs`.
        let end = at(3).saturating_add(Nanos::new(1));
        policy.set_rate(&state, end, flow.rate()?);
        prop_assert_eq!(policy.status(&state, end).available, u64::from(burst));
        prop_assert_eq!(policy.try_acquire(&state, end, burst.max(1)).is_ok(), burst > 0);
    }
}
