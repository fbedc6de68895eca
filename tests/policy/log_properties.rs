//! The sliding log against a plain list of grants from which undone grants are removed. Every
//! decision, predicted time and status is compared, in long runs that undo far more permits than
//! the log has spare entries. All times are arguments.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{Change, Keep};
use tidegate::{Nanos, Policy, Rate, Refusal, SlidingLog};

/// The highest limit that a change sets, in permits.
const ROOM: u64 = 24;
const LONGEST: u64 = 200;

fn rate(limit: u64, length: u64) -> Result<Rate, TestCaseError> {
    Ok(if limit == 0 { Rate::ZERO } else { Rate::new(limit, Duration::from_nanos(length))? })
}

/// A grant of `n` permits as of a time. A debit has no charge.
struct Grant<Charge> {
    at: u64,
    n: u64,
    charge: Option<Charge>,
}

/// The real log and its model, the list.
struct Pair<'a> {
    policy: &'a SlidingLog,
    state: <SlidingLog as Policy>::State,
    limit: u64,
    length: u64,
    now: u64,
    /// The time of the last grant or refund: no later one is noted as of an earlier time.
    latest: u64,
    /// The time of the last change. If the clock went back before it, an expired grant whose entry
    /// has been reused since would count again in a longer window.
    changed: u64,
    grants: Vec<Grant<<SlidingLog as Policy>::Charge>>,
    /// Grants that a reset has forgotten.
    before_reset: Vec<<SlidingLog as Policy>::Charge>,
}

#[derive(Clone, Debug)]
enum Call {
    Pass(u64),
    Back(u64),
    Take(u32),
    /// Takes permits until a request is refused.
    TakeAll(u32),
    /// Undoes a grant, or this many of its permits.
    Undo(prop::sample::Index, u32),
    /// Undoes every second grant, starting from the newest or from the oldest.
    UndoMany(bool),
    Refund(u32),
    Debit(u32),
    Reset,
    Change(u64, u64),
}

fn some_calls() -> impl Strategy<Value = Vec<Call>> {
    let n = || prop_oneof![3 => Just(1u32), 2 => 1u32..6, 1 => 1u32..30];
    let call = prop_oneof![
        4 => prop_oneof![Just(0), 1u64..4, 1..LONGEST].prop_map(Call::Pass),
        1 => (1u64..20).prop_map(Call::Back),
        6 => n().prop_map(Call::Take),
        6 => n().prop_map(Call::TakeAll),
        8 => (any::<prop::sample::Index>(), n()).prop_map(|(grant, n)| Call::Undo(grant, n)),
        6 => any::<bool>().prop_map(Call::UndoMany),
        1 => n().prop_map(Call::Refund),
        1 => n().prop_map(Call::Debit),
        1 => Just(Call::Reset),
        2 => (0..=ROOM, 1..LONGEST).prop_map(|(limit, length)| Call::Change(limit, length)),
    ];
    vec(call, 1..300)
}

impl Pair<'_> {
    /// Returns the time at which a request is judged: the log does not go back before its last
    /// grant.
    fn judged_at(&self) -> u64 {
        self.now.max(self.latest)
    }

    fn counting(&self, at: u64) -> u64 {
        self.grants.iter().filter(|grant| grant.at + self.length > at).map(|grant| grant.n).sum()
    }

    /// Returns the first time from now on at which `n` permits fit.
    fn due(&self, n: u64) -> Option<u64> {
        let fits = |at: &u64| self.counting(*at) + n <= self.limit;
        let ends = self.grants.iter().map(|grant| grant.at + self.length);
        let judged_at = self.judged_at();
        ends.filter(|end| *end > judged_at).chain([judged_at]).filter(fits).min()
    }

    /// Compares everything that can be observed.
    fn compare(&self) -> Result<(), TestCaseError> {
        let at = Nanos::new(self.now);
        for n in [1, 2, 5, 11, ROOM] {
            let told = self.policy.ready_at(&self.state, at, 0, u32::try_from(n)?);
            let due = self.due(n).map_or(Nanos::MAX, Nanos::new);
            // On a clock that is behind the last grant, the time of the last grant counts as now.
            let due = if due == Nanos::new(self.judged_at()) { at } else { due };
            prop_assert_eq!(told.max(at), due, "for {}", n);
        }
        let status = self.policy.status(&self.state, at);
        let counting = self.counting(self.judged_at());
        prop_assert_eq!(status.available, self.limit.saturating_sub(counting));
        if self.limit > 0 {
            let last = self.grants.iter().map(|grant| grant.at + self.length).max().unwrap_or(0);
            let full_at = if last > self.judged_at() { last } else { self.now };
            prop_assert_eq!(status.full_at.as_u64().max(self.now), full_at.max(self.now));
        }
        Ok(())
    }

    fn take(&mut self, n: u32) -> Result<bool, TestCaseError> {
        let (at, due) = (Nanos::new(self.now), self.due(n.into()));
        match self.policy.try_acquire(&self.state, at, n) {
            Ok(charge) => {
                prop_assert_eq!(due, Some(self.judged_at()), "{} granted", n);
                self.latest = self.judged_at();
                self.grants.push(Grant { at: self.latest, n: n.into(), charge: Some(charge) });
                return Ok(true);
            }
            Err(Refusal::Limited { retry_after }) => {
                let told = at.saturating_add(retry_after);
                prop_assert_ne!(due, Some(self.judged_at()), "{} refused", n);
                prop_assert_eq!(told, due.map_or(Nanos::MAX, Nanos::new));
            }
            Err(_) => prop_assert!(u64::from(n) > self.limit),
        }
        Ok(false)
    }

    fn undo(&mut self, grant: usize, n: u32) -> Result<(), TestCaseError> {
        let judged_at = self.judged_at();
        let Grant { at, n: taken, charge } = &mut self.grants[grant];
        let Some(whole) = *charge else { return Ok(()) };
        let taken_now = u32::try_from(*taken)?;
        let used = taken_now.saturating_sub(n);
        let Some(unused) = self.policy.unspent(whole, taken_now, used) else { return Ok(()) };
        self.policy.undo(&self.state, Nanos::new(self.now), unused, u64::MAX);
        if *at + self.length > judged_at {
            *taken = used.into();
        } else {
            // The grant has expired, and is not given back twice.
            *charge = None;
        }
        self.grants.retain(|grant| grant.n > 0);
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match *call {
            Call::Pass(span) => self.now += span,
            Call::Back(span) => self.now = (self.now - span).max(self.changed),
            Call::Take(n) => drop(self.take(n)?),
            Call::TakeAll(n) => while self.take(n)? {},
            // Nothing comes back from before a reset.
            Call::Undo(ref grant, n) if n % 2 == 0 && !self.before_reset.is_empty() => {
                let charge = self.before_reset.swap_remove(grant.index(self.before_reset.len()));
                self.policy.undo(&self.state, Nanos::new(self.now), charge, u64::MAX);
            }
            Call::Undo(ref grant, n) if !self.grants.is_empty() => {
                self.undo(grant.index(self.grants.len()), n)?;
            }
            Call::Undo(..) => {}
            Call::UndoMany(from_newest) => {
                let count = self.grants.len();
                for step in 0..count.div_ceil(2) {
                    // An expired grant stays in the list.
                    let at = if from_newest {
                        self.grants.len().checked_sub(1 + step)
                    } else {
                        Some(count / 2 - step.min(count / 2))
                    };
                    if let Some(at) = at.filter(|at| *at < self.grants.len()) {
                        self.undo(at, u32::MAX)?;
                    }
                }
            }
            Call::Refund(n) => {
                // A refund that gives nothing back notes no time.
                if n > 0 && self.counting(self.judged_at()) > 0 {
                    self.latest = self.judged_at();
                }
                self.policy.refund(&self.state, Nanos::new(self.now), n);
                let (mut left, judged_at, length) = (u64::from(n), self.judged_at(), self.length);
                for grant in self.grants.iter_mut().filter(|grant| grant.at + length > judged_at) {
                    let back = grant.n.min(left);
                    grant.n -= back;
                    left -= back;
                    if back > 0 {
                        // A caller that gives a permit back twice gets it back twice.
                        grant.charge = None;
                    }
                }
                self.grants.retain(|grant| grant.n > 0);
                // Refunded permits are indistinguishable from other permits of the same time.
                for grant in &mut self.grants {
                    grant.charge = None;
                }
            }
            Call::Debit(n) => {
                // The log forgets more than that; see `tests/policy/debit.rs`.
                let most = ROOM.saturating_sub(self.counting(self.judged_at()));
                let n = u64::from(n).min(most);
                self.policy.debit(&self.state, Nanos::new(self.now), u32::try_from(n)?);
                if n > 0 {
                    self.latest = self.judged_at();
                    self.grants.push(Grant { at: self.latest, n, charge: None });
                }
            }
            Call::Reset => {
                let at = Nanos::new(self.now);
                prop_assert!(self.policy.change(&self.state, at, Change::reset()).is_ok());
                self.before_reset.extend(self.grants.drain(..).filter_map(|grant| grant.charge));
            }
            Call::Change(limit, length) => {
                let length = if limit == 0 { self.length } else { length };
                let judged_at = self.judged_at();
                // An expired grant may count again in a longer window, or may not.
                let counts = |length| move |grant: &Grant<_>| grant.at + length > judged_at;
                if self.grants.iter().any(|grant| counts(length)(grant) != counts(self.length)(grant)) {
                    return Ok(());
                }
                let change = Change::rate(rate(limit, length)?).keep(Keep::Count);
                prop_assert!(self.policy.change(&self.state, Nanos::new(self.now), change).is_ok());
                (self.limit, self.length, self.changed) = (limit, length, self.now);
            }
        }
        self.compare()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_log_is_a_list_without_the_undone_grants(
        limit in 1..=ROOM, length in 1..LONGEST, calls in some_calls(),
    ) {
        let policy = SlidingLog::new(rate(limit, length)?).with_capacity(u32::try_from(ROOM)?)?;
        let now = 1000 * LONGEST;
        let state = policy.start(Nanos::new(now));
        let mut pair = Pair { policy: &policy, state, limit, length, now, latest: 0, changed: 0, grants: Vec::new(), before_reset: Vec::new() };
        for call in &calls {
            pair.call(call)?;
        }
    }
}

/// Returns a log of eight permits in 100 ns after some requests, some of them undone, and the time.
fn log_with(acts: &[(u64, u32, bool)]) -> (SlidingLog, <SlidingLog as Policy>::State, u64) {
    let policy = SlidingLog::new(Rate::new(8, Duration::from_nanos(100)).expect("whole"));
    let (state, mut now) = (policy.start(Nanos::ZERO), 1000);
    for &(passed, n, is_undone) in acts {
        now += passed;
        let at = Nanos::new(now);
        if let Ok(charge) = policy.try_acquire(&state, at, n)
            && is_undone
        {
            policy.undo(&state, at, charge, u64::MAX);
        }
    }
    (policy, state, now)
}

fn some_takes() -> impl Strategy<Value = Vec<(u64, u32, bool)>> {
    vec((0..40u64, 1..9u32, prop::bool::weighted(0.3)), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn each_of_several_requests_is_granted_when_a_log_predicts_it(
        acts in some_takes(), sizes in vec(1..9u32, 1..8),
    ) {
        let (policy, state, now) = log_with(&acts);
        let mut forecast = policy.forecast(&state, Nanos::new(now));
        let dues: Vec<_> = sizes.iter().map(|n| policy.predict(&state, &mut forecast, *n)).collect();
        let mut before = Nanos::new(now);
        for (n, due) in sizes.into_iter().zip(dues) {
            if due > before {
                let early = policy.try_acquire(&state, Nanos::new(due.as_u64() - 1), n);
                prop_assert_eq!(early.map(drop), Err(Refusal::Limited { retry_after: Nanos::new(1) }));
            }
            prop_assert!(policy.try_acquire(&state, due, n).is_ok(), "{n} at {due}");
            before = due;
        }
    }

    #[test]
    fn what_a_grant_left_is_the_status_before_the_grants_after_it(
        acts in some_takes(), later in vec(1..5u32, 0..6),
    ) {
        let (policy, state, now) = log_with(&acts);
        let at = Nanos::new(now);
        if let Ok(charge) = policy.try_acquire(&state, at, 1) {
            let then = policy.status(&state, at);
            for n in later {
                let _ = policy.try_acquire(&state, at, n);
            }
            let left = policy.left(&state, charge, at);
            prop_assert_eq!((left.limit, left.available), (then.limit, then.available));
            prop_assert_eq!((left.next_at, left.full_at), (then.next_at, then.full_at));
        }
    }
}

/// Bug: the time at which the log is full counted the grants after it.
#[test]
fn a_grant_leaves_a_log_that_is_full_when_the_grant_is_over() {
    let policy = SlidingLog::new(Rate::per_second(10));
    let state = policy.start(Nanos::ZERO);
    let charge = policy.try_acquire(&state, Nanos::ZERO, 1).expect("room");
    policy.try_acquire(&state, Nanos::new(500_000_000), 1).expect("room");
    assert_eq!(policy.left(&state, charge, Nanos::ZERO).full_at, Nanos::new(1_000_000_000));
}

/// Bug: a log of zero permits was never full, even with no permit counted.
#[test]
fn a_log_without_permits_is_full_when_no_grant_counts() {
    let policy = SlidingLog::new(Rate::per_second(10));
    let (state, at) = (policy.start(Nanos::ZERO), Nanos::new(300_000_000));
    policy.try_acquire(&state, at, 2).expect("room");
    policy.change(&state, at, Change::rate(Rate::ZERO)).expect("a change");
    let status = policy.status(&state, at);
    assert_eq!(
        (status.available, status.next_at, status.full_at),
        (0, Nanos::MAX, Nanos::new(1_300_000_000))
    );
    assert!(!policy.is_fresh(&state, at) && policy.is_fresh(&state, status.full_at));
}

/// Bug: a grant from before a reset took back permits of a grant from after it, once the log had
/// been copied to its second ring. All was at one instant, and a window had 150 permits of 100.
#[test]
fn a_grant_from_before_a_reset_takes_nothing_back_whatever_was_undone_since() {
    let policy = SlidingLog::new(Rate::per_second(100));
    let (at, state) = (Nanos::new(1_000), policy.start(Nanos::ZERO));
    let take = |n| policy.try_acquire(&state, at, n).expect("room");
    let before = take(100);
    policy.change(&state, at, Change::reset()).expect("a reset");
    let after = take(100);
    policy.undo(&state, at, policy.unspent(after, 100, 50).expect("a part"), u64::MAX);
    policy.undo(&state, at, before, u64::MAX);
    assert_eq!(policy.status(&state, at).available, 50);
}

/// Bug: a refund that gave nothing back made the log forget grants that were over, and that count
/// again in a longer window.
#[test]
fn a_refund_of_nothing_forgets_no_grant() {
    let policy = SlidingLog::new(Rate::per_second(10));
    let (state, later) = (policy.start(Nanos::ZERO), Nanos::new(2_000_000_000));
    policy.try_acquire(&state, Nanos::ZERO, 10).expect("room");
    policy.refund(&state, later, 1);
    policy.change(&state, later, Change::rate(Rate::per_minute(10))).expect("a change");
    assert_eq!(policy.status(&state, later).available, 0);
}

/// Bug: what a grant had left was told by an index of the other ring, into which the log had been
/// copied since.
#[test]
fn what_a_grant_left_is_told_after_a_copy() {
    let policy = SlidingLog::new(Rate::per_second(100));
    let (at, state) = (Nanos::new(1_000), policy.start(Nanos::ZERO));
    let take = |n| policy.try_acquire(&state, at, n).expect("room");
    let (large, small) = (take(80), take(20));
    policy.undo(&state, at, large, u64::MAX);
    assert_eq!(policy.left(&state, small, at).available, 80);
}

/// Regression: once the log had been copied to its second ring and back, all at one instant, some
/// grants from after a reset counted as grants from before it, and could not be undone.
#[test]
fn grants_after_a_reset_are_undone_whatever_was_undone_since() {
    for rounds in 0..60 {
        let policy = SlidingLog::new(Rate::per_second(20));
        let (at, state) = (Nanos::new(1_000), policy.start(Nanos::ZERO));
        let take = |n| policy.try_acquire(&state, at, n).expect("room");
        take(14);
        policy.change(&state, at, Change::reset()).expect("a reset");
        let held = [(); 5].map(|()| take(1));
        for _ in 0..rounds {
            policy.undo(&state, at, take(10), u64::MAX);
        }
        for charge in held {
            policy.undo(&state, at, charge, u64::MAX);
        }
        assert_eq!(policy.status(&state, at).available, 20, "after {rounds} rounds");
    }
}

#[test]
fn a_limit_is_cut_to_the_room_of_a_log() {
    let policy = SlidingLog::new(Rate::per_second(8)).with_capacity(12).expect("few");
    let state = policy.start(Nanos::ZERO);
    policy.set_rate(&state, Nanos::ZERO, Rate::per_second(20));
    assert_eq!(policy.status(&state, Nanos::ZERO).available, 12);
    assert_eq!(policy.check(13), Err(Refusal::ExceedsLimit { requested: 13, limit: 12 }));
    assert!(policy.try_acquire(&state, Nanos::ZERO, 12).is_ok());
    assert!(policy.try_acquire(&state, Nanos::ZERO, 1).is_err());
    assert_eq!([1, 5].map(|n| policy.weight(n)), [1, 5]);
}
