//! The window policies, each against a simple model: a plain list of grants. Times (some go back),
//! sizes, refunds, undone grants and changes are random. All times are arguments.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{Change, Keep};
use tidegate::{FixedWindow, Nanos, Policy, Rate, Refusal, SlidingEstimate, SlidingLog, SlidingWindow};

/// A time before all others.
const NEVER: i128 = i128::MIN / 2;

/// `limit` permits per `length` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Terms {
    limit: u32,
    length: u64,
}

impl Terms {
    fn rate(self) -> Result<Rate, TestCaseError> {
        if self.limit == 0 {
            return Ok(Rate::ZERO);
        }
        Ok(Rate::new(self.limit.into(), Duration::from_nanos(self.length))?)
    }
}

/// Returns the start of the stretch that contains a time. One of the stretches starts at `phase`.
fn stretch(at: i128, length: i128, phase: i128) -> i128 {
    at - (at - phase).rem_euclid(length)
}

// The reference models

/// A grant: the number of permits, the time it counts from, and the name by which it is undone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grant {
    at: i128,
    n: u32,
    name: usize,
    /// The grant may no longer count: it had expired when it was undone, or when the window became
    /// longer.
    may_be_gone: bool,
}

/// A rule on a list of grants.
trait Rule: Clone {
    /// Whether a request waits exactly until the requests ahead of it are served.
    const EXACT_QUEUE: bool = true;

    /// Whether a longer window counts expired grants again.
    const KEEPS_ALL: bool = false;

    /// Whether the policy cannot remember more than the limit.
    const HAS_ROOM: bool = false;

    /// Returns the time a grant made at `at` counts from; `reached` is the latest such time so far.
    fn noted(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128) -> i128;

    /// Returns whether a grant counts at a time.
    fn counts(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, grant: &Grant) -> bool;

    /// Returns whether `n` more permits fit next to the permits that count.
    fn fits(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, n: u32) -> bool {
        let counting = grants.iter().filter(|grant| self.counts(grants, terms, reached, at, grant));
        sum(counting) + i128::from(n) <= terms.limit.into()
    }

    /// Returns the grants that count after a change, and the latest time that one of them counts
    /// from.
    fn changed(&self, grants: Vec<Grant>, reached: i128, at: i128, change: &Changed) -> (Vec<Grant>, i128);

    /// Returns the key by which a refund orders the grants: the oldest first, unless a rule
    /// overrides it.
    fn refund_order(&self, grant: &Grant) -> i128 {
        grant.at
    }

    /// Returns the latest time that grants count from after a refund.
    fn reached_by_refund(&self, _terms: Terms, reached: i128, _at: i128) -> i128 {
        reached
    }
}

/// A change of the terms.
struct Changed {
    old: Terms,
    new: Terms,
    keep: Keep,
}

impl Changed {
    /// Returns what `permits` permits become after the change, as one grant.
    fn carried(&self, at: i128, permits: i128) -> Option<Grant> {
        let n = match self.keep {
            Keep::Count => permits,
            // Used permits are not forgotten.
            Keep::Ratio if self.old.limit > 0 && self.new.limit > 0 => {
                let (new, old) = (i128::from(self.new.limit), i128::from(self.old.limit));
                (permits * new + old - 1) / old
            }
            Keep::Ratio => permits,
            Keep::Nothing => 0,
        };
        u32::try_from(n).ok().filter(|n| *n > 0).map(|n| Grant { at, n, name: 0, may_be_gone: false })
    }
}

fn sum<'a>(grants: impl IntoIterator<Item = &'a Grant>) -> i128 {
    grants.into_iter().map(|grant| i128::from(grant.n)).sum()
}

/// All grants of one window. Windows are aligned, with one starting at this time, or start at the
/// first grant.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    phase: Option<i128>,
}

impl Rule for Fixed {
    /// Returns the window of a time, or the newest window reached, if that is later.
    fn noted(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128) -> i128 {
        let newest = grants.iter().map(|grant| grant.at).max();
        match (self.phase, newest) {
            (Some(phase), _) => stretch(at, terms.length.into(), phase).max(reached),
            (None, Some(newest)) if at < newest + i128::from(terms.length) => newest,
            (None, _) => at.max(reached),
        }
    }

    fn counts(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, grant: &Grant) -> bool {
        grant.at == self.noted(grants, terms, reached, at)
    }

    /// The new window contains everything in the old one.
    fn changed(&self, grants: Vec<Grant>, reached: i128, at: i128, change: &Changed) -> (Vec<Grant>, i128) {
        let window = match self.phase {
            Some(phase) => stretch(at, change.new.length.into(), phase),
            None => self.noted(&grants, change.old, reached, at),
        };
        (change.carried(window, sum(&grants)).into_iter().collect(), window)
    }
}

/// The last cells, whatever they contain.
#[derive(Clone, Copy, Debug)]
struct Cells {
    cells: i128,
    phase: i128,
}

impl Cells {
    fn length(self, terms: Terms) -> i128 {
        (i128::from(terms.length) + self.cells - 1) / self.cells
    }

    fn span(self, terms: Terms) -> i128 {
        self.length(terms) * self.cells
    }
}

impl Rule for Cells {
    /// If the clock went back, the grant counts in the newest cell reached.
    fn noted(&self, _grants: &[Grant], terms: Terms, reached: i128, at: i128) -> i128 {
        stretch(at, self.length(terms), self.phase).max(reached)
    }

    fn counts(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, grant: &Grant) -> bool {
        grant.at + self.span(terms) > self.noted(grants, terms, reached, at)
    }

    /// Each old cell goes to the new cell that contains its last moment.
    fn changed(&self, grants: Vec<Grant>, _reached: i128, at: i128, change: &Changed) -> (Vec<Grant>, i128) {
        let cells: BTreeSet<i128> = grants.iter().map(|grant| grant.at).collect();
        // All cells together are rounded, from the newest on.
        let carried_since = |cell: i128| {
            let since = sum(grants.iter().filter(|grant| grant.at >= cell));
            change.carried(0, since).map_or(0, |grant| grant.n)
        };
        let carried = |cell: &i128| {
            let n = carried_since(*cell) - carried_since(cell + 1);
            let last = (cell + self.length(change.old) - 1).min(at);
            let at = stretch(last, self.length(change.new), self.phase);
            (n > 0).then_some(Grant { at, n, name: 0, may_be_gone: false })
        };
        let carried: Vec<_> = cells.iter().filter_map(carried).collect();
        let reached = carried.iter().map(|grant| grant.at).max().unwrap_or(NEVER);
        (carried, reached)
    }
}

/// Exact: the permits granted less than a window ago.
#[derive(Clone, Copy, Debug)]
struct Log;

impl Rule for Log {
    const KEEPS_ALL: bool = true;
    const HAS_ROOM: bool = true;

    /// Times never go back: a grant counts too long rather than too briefly.
    fn noted(&self, _grants: &[Grant], _terms: Terms, reached: i128, at: i128) -> i128 {
        reached.max(at)
    }

    fn counts(&self, _grants: &[Grant], terms: Terms, _reached: i128, at: i128, grant: &Grant) -> bool {
        grant.at + i128::from(terms.length) > at
    }

    /// Grants stay as they are.
    fn changed(&self, grants: Vec<Grant>, reached: i128, _at: i128, change: &Changed) -> (Vec<Grant>, i128) {
        (if change.keep == Keep::Nothing { Vec::new() } else { grants }, reached)
    }
}

/// The permits of this window, and a share of the permits of the previous window.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    phase: i128,
}

impl Rule for Estimate {
    const EXACT_QUEUE: bool = false; // See `tests/policy/cases.rs`.

    fn noted(&self, _grants: &[Grant], terms: Terms, reached: i128, at: i128) -> i128 {
        stretch(at, terms.length.into(), self.phase).max(reached)
    }

    fn counts(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, grant: &Grant) -> bool {
        grant.at >= self.noted(grants, terms, reached, at) - i128::from(terms.length)
    }

    fn fits(&self, grants: &[Grant], terms: Terms, reached: i128, at: i128, n: u32) -> bool {
        let window = self.noted(grants, terms, reached, at);
        // If the clock went back, the time is the start of the newest window reached.
        let elapsed = (at - window).max(0);
        let (limit, length) = (i128::from(terms.limit), i128::from(terms.length));
        let used = sum(grants.iter().filter(|grant| grant.at == window));
        let before = sum(grants.iter().filter(|grant| grant.at == window - length));
        before * (length - elapsed) + (used + i128::from(n)) * length <= limit * length
    }

    /// Both windows have the new length.
    fn changed(&self, grants: Vec<Grant>, reached: i128, at: i128, change: &Changed) -> (Vec<Grant>, i128) {
        let old = self.noted(&grants, change.old, reached, at);
        let new = stretch(at, change.new.length.into(), self.phase);
        let (used, before): (Vec<_>, Vec<_>) = grants.iter().partition(|grant| grant.at == old);
        let used = change.carried(new, sum(used));
        let before = change.carried(new - i128::from(change.new.length), sum(before));
        (used.into_iter().chain(before).collect(), new)
    }

    fn refund_order(&self, grant: &Grant) -> i128 {
        -grant.at
    }

    fn reached_by_refund(&self, terms: Terms, reached: i128, at: i128) -> i128 {
        self.noted(&[], terms, reached, at)
    }
}

// Calls

#[derive(Clone, Debug)]
enum Call {
    Pass(u64),
    /// The clock goes back by this percentage of a window, but at most a quarter of a window behind
    /// the latest time.
    Back(u64),
    Try(u32),
    /// Waits exactly until the request is due.
    Wait(u32),
    /// This many requests wait in the queue, each for one permit, and then one request for more.
    Queue(u32, u32),
    /// Takes one by one every permit that the status reports.
    TakeAll,
    /// Undoes one of the recent grants.
    Undo(usize),
    /// Takes all these at one time, and undoes them in a different order.
    Around(Vec<u32>, usize),
    Refund(u32),
    Change(Terms, Keep),
    /// Charges this many permits, whether they are available or not.
    Debit(u32),
    /// Takes the first number of permits, and gives back all but the second.
    Settle(u32, u32),
}

const LONGEST: u64 = 1000;

fn some_terms() -> impl Strategy<Value = Terms> {
    (1u32..12, 1..LONGEST).prop_map(|(limit, length)| Terms { limit, length })
}

fn some_span() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0u64..20, 0..LONGEST, 0..3 * LONGEST]
}

fn some_calls(goes_back: bool) -> impl Strategy<Value = Vec<Call>> {
    let n = || prop_oneof![3 => Just(1), 2 => 1u32..5, 1 => 1u32..14];
    let call = prop_oneof![
        8 => some_span().prop_map(Call::Pass),
        2 => (0u64..=25).prop_map(move |percent| if goes_back { Call::Back(percent) } else { Call::Pass(percent) }),
        8 => n().prop_map(Call::Try),
        4 => n().prop_map(Call::Wait),
        2 => (1u32..30, n()).prop_map(|(ahead, n)| Call::Queue(ahead, n)),
        1 => Just(Call::TakeAll),
        3 => (0usize..6).prop_map(Call::Undo),
        2 => (vec(n(), 1..5), any::<usize>()).prop_map(|(sizes, turn)| Call::Around(sizes, turn)),
        1 => n().prop_map(Call::Refund),
        1 => n().prop_map(Call::Debit),
        1 => (n(), 0u32..5).prop_map(|(n, used)| Call::Settle(n, used)),
    ];
    vec(call, 1..80)
}

fn some_calls_and_changes() -> impl Strategy<Value = Vec<Call>> {
    let none = Terms { limit: 0, length: 1_000_000_000 };
    let terms = prop_oneof![6 => some_terms(), 1 => Just(none)];
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)];
    let change = (terms, keep).prop_map(|(terms, keep)| Call::Change(terms, keep));
    (some_calls(false), vec((any::<prop::sample::Index>(), change), 1..8)).prop_map(|(mut calls, changes)| {
        for (index, change) in changes {
            calls.insert(index.index(calls.len() + 1), change);
        }
        calls
    })
}

// The policy and its model

struct Pair<'a, P: Policy, R> {
    policy: &'a P,
    state: P::State,
    rule: R,
    terms: Terms,
    now: Nanos,
    grants: Vec<Grant>,
    charges: Vec<(usize, P::Charge)>,
    /// When permits were really granted, and how many, less the refunded ones.
    passed: Vec<Grant>,
    names: usize,
    /// The latest time at which anything was written, and the latest time that a grant counts from.
    latest: Nanos,
    reached: i128,
    /// More permits were counted than the policy has room for.
    overflowed: bool,
    /// The clock does not go back before this time, that of the last refund; see
    /// `tests/policy/cases.rs`.
    refunded: Nanos,
}

fn exact(at: Nanos) -> i128 {
    at.as_u64().into()
}

impl<'a, P: Policy, R: Rule> Pair<'a, P, R> {
    fn new(policy: &'a P, rule: R, terms: Terms) -> Self {
        let now = Nanos::new(100 * LONGEST);
        let state = policy.start(now);
        Pair {
            policy,
            state,
            rule,
            terms,
            now,
            grants: Vec::new(),
            charges: Vec::new(),
            passed: Vec::new(),
            names: 0,
            latest: now,
            reached: NEVER,
            overflowed: false,
            refunded: Nanos::ZERO,
        }
    }

    fn ready_at(&self, ahead: u64, n: u32) -> Nanos {
        self.policy.ready_at(&self.state, self.now, ahead, n).max(self.now)
    }

    /// Returns all that the state predicts: the permits available now, and the times of the next
    /// ones.
    fn outlook(&self) -> Vec<Nanos> {
        let status = self.policy.status(&self.state, self.now);
        let mut outlook = vec![Nanos::new(status.available), status.full_at.max(self.now)];
        outlook.extend([1, 2, 3, 7, 12].map(|n| self.ready_at(0, n)));
        outlook.extend([1, 4, 9, 30].map(|ahead| self.ready_at(ahead, 1)));
        outlook
    }

    /// Returns the grants that count at a time.
    fn counting(&self, at: Nanos) -> Vec<Grant> {
        let counts =
            |grant: &&Grant| self.rule.counts(&self.grants, self.terms, self.reached, exact(at), grant);
        self.grants.iter().filter(counts).copied().collect()
    }

    /// Returns the grants that the policy cannot have forgotten.
    fn surely_counting(&self) -> Vec<Grant> {
        self.counting(self.latest).into_iter().filter(|grant| !grant.may_be_gone).collect()
    }

    /// Tries now, compares the decision, and checks what a refusal reports.
    fn attempt(&mut self, n: u32) -> Result<Option<usize>, TestCaseError> {
        let fits = |grants: &[Grant]| self.rule.fits(grants, self.terms, self.reached, exact(self.now), n);
        // Grants expired at the latest time may be forgotten, or count again if the clock goes
        // back.
        let (fits_all, fits_latest) = (fits(&self.grants), fits(&self.surely_counting()));
        let (ready, outlook) = (self.ready_at(0, n), self.outlook());
        match self.policy.try_acquire(&self.state, self.now, n) {
            Ok(charge) => {
                prop_assert!(fits_latest, "{} granted", n);
                prop_assert_eq!(ready, self.now);
                let at = exact(self.now);
                let noted = self.rule.noted(&self.surely_counting(), self.terms, self.reached, at);
                self.latest = self.latest.max(self.now);
                self.reached = self.reached.max(noted);
                self.names += 1;
                let grant = Grant { at: noted, n, name: self.names, may_be_gone: false };
                self.grants.push(grant);
                self.passed.push(Grant { at: exact(self.now), ..grant });
                self.charges.push((self.names, charge));
                return Ok(Some(self.names));
            }
            Err(Refusal::Limited { retry_after }) => {
                prop_assert!(!fits_all, "{} refused", n);
                let due = self.now.saturating_add(retry_after);
                prop_assert_eq!(ready, due);
                prop_assert!(due > self.now);
                if due != Nanos::MAX {
                    let early = Nanos::new(due.as_u64() - 1);
                    let told = self.policy.try_acquire(&self.state, early, n).err();
                    prop_assert_eq!(told, Some(Refusal::Limited { retry_after: Nanos::new(1) }));
                }
            }
            Err(_) => prop_assert!(n > self.terms.limit),
        }
        prop_assert_eq!(outlook, self.outlook());
        Ok(None)
    }

    /// Waits until `n` permits are available, and takes them. Returns the time, or `None` if that
    /// is never.
    fn wait(&mut self, n: u32) -> Result<Option<Nanos>, TestCaseError> {
        let due = self.ready_at(0, n);
        if due == Nanos::MAX || self.policy.check(n).is_err() {
            prop_assert!(self.policy.try_acquire(&self.state, self.now, n).is_err());
            return Ok(None);
        }
        self.now = due;
        prop_assert!(self.attempt(n)?.is_some(), "{n} unavailable when they were due");
        Ok(Some(due))
    }

    /// Undoes one of the last grants. Permits that the policy did not remember for lack of memory
    /// are lost.
    fn undo(&mut self, charge: usize) {
        let (name, charge) = self.charges.remove(charge);
        self.policy.undo(&self.state, self.now, charge, u64::MAX);
        let counting = self.counting(self.now);
        self.grants.retain(|grant| grant.name != name || !counting.contains(grant));
        self.grants.iter_mut().filter(|grant| grant.name == name).for_each(|grant| grant.may_be_gone = true);
        self.passed.retain(|grant| grant.name != name);
    }

    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        if self.overflowed && sum(&self.counting(self.now)) == 0 {
            self.overflowed = false;
        }
        match *call {
            Call::Pass(span) => self.now = self.now.saturating_add(Nanos::new(span)),
            Call::Back(percent) => {
                let back = |at: Nanos, percent| at.as_u64() - self.terms.length * percent / 100;
                self.now = Nanos::new(back(self.now, percent).max(back(self.latest, 25))).max(self.refunded);
            }
            Call::Try(n) => drop(self.attempt(n)?),
            Call::Wait(n) => drop(self.wait(n)?),
            Call::Queue(ahead, n) => {
                // For a clock that goes back, see `tests/policy/cases.rs`.
                if R::EXACT_QUEUE && self.now >= self.latest && n <= self.terms.limit {
                    let told = self.ready_at(ahead.into(), n);
                    for _ in 0..ahead {
                        self.wait(1)?;
                    }
                    prop_assert_eq!(self.wait(n)?, Some(told));
                }
            }
            Call::TakeAll => {
                let available = self.policy.status(&self.state, self.now).available;
                for taken in 0..available {
                    prop_assert!(self.attempt(1)?.is_some(), "only {taken} of {available} were available");
                }
                prop_assert_eq!(self.attempt(1)?, None);
            }
            Call::Undo(ago) => {
                if let Some(charge) = self.charges.len().checked_sub(ago + 1) {
                    self.undo(charge);
                }
            }
            Call::Around(ref sizes, turn) => {
                let (outlook, mut made) = (self.outlook(), Vec::new());
                for n in sizes {
                    made.extend(self.attempt(*n)?);
                }
                while !made.is_empty() {
                    let name = made.remove(turn % made.len());
                    let charge = self.charges.iter().position(|(of, _)| *of == name);
                    charge.into_iter().for_each(|charge| self.undo(charge));
                }
                prop_assert_eq!(outlook, self.outlook());
            }
            Call::Debit(n) => {
                self.policy.debit(&self.state, self.now, n);
                let at = exact(self.now);
                let noted = self.rule.noted(&self.surely_counting(), self.terms, self.reached, at);
                self.latest = self.latest.max(self.now);
                self.reached = self.reached.max(noted);
                self.grants.push(Grant { at: noted, n, name: 0, may_be_gone: false });
                if R::HAS_ROOM && sum(&self.counting(self.now)) > self.terms.limit.into() {
                    // The policy forgets the older grants, so none of them can be undone.
                    self.charges.clear();
                    self.overflowed = true;
                }
            }
            Call::Settle(n, used) => {
                if self.attempt(n)?.is_none() {
                    return Ok(());
                }
                let Some((name, charge)) = self.charges.pop() else {
                    return Ok(());
                };
                let unused = self.policy.unspent(charge, n, used);
                prop_assert_eq!(unused.is_some(), used < n);
                if let Some(unused) = unused {
                    self.policy.undo(&self.state, self.now, unused, u64::MAX);
                }
                for grant in self.grants.iter_mut().chain(&mut self.passed).filter(|grant| grant.name == name)
                {
                    grant.n = used.min(n);
                }
                self.grants.retain(|grant| grant.n > 0);
            }
            Call::Refund(_) if self.now < self.latest || self.overflowed => {}
            Call::Refund(n) => {
                self.policy.refund(&self.state, self.now, n);
                let mut order: Vec<_> = (0..self.grants.len()).collect();
                order.sort_by_key(|index| self.rule.refund_order(&self.grants[*index]));
                let (counting, mut left) = (self.counting(self.now), n);
                for index in order {
                    let grant = &mut self.grants[index];
                    let back = if counting.contains(grant) { left.min(grant.n) } else { 0 };
                    left -= back;
                    grant.n -= back;
                }
                self.grants.retain(|grant| grant.n > 0);
                (self.latest, self.refunded) = (self.now, self.now);
                self.reached = self.rule.reached_by_refund(self.terms, self.reached, exact(self.now));
                // A caller that gives a permit back twice gets it back twice.
                self.charges.clear();
                self.passed.clear();
            }
            Call::Change(new, keep) => {
                // At rate zero a window keeps its length.
                let new = if new.limit == 0 { Terms { limit: 0, ..self.terms } } else { new };
                let change = Change::rate(new.rate()?).keep(keep);
                prop_assert!(self.policy.change(&self.state, self.now, change).is_ok());
                let change = Changed { old: self.terms, new, keep };
                let mut counting = self.counting(self.now);
                if R::KEEPS_ALL {
                    let counts = |grant: &Grant| counting.contains(grant);
                    let all = self.grants.iter();
                    counting = all
                        .map(|grant| Grant { may_be_gone: grant.may_be_gone || !counts(grant), ..*grant })
                        .collect();
                }
                (self.grants, self.reached) =
                    self.rule.changed(counting, self.reached, exact(self.now), &change);
                (self.terms, self.latest) = (new, self.now);
                self.charges.clear();
                self.passed.clear();
            }
        }
        Ok(())
    }

    /// Returns the most permits in any stretch of `length` that starts at a grant, if time only
    /// moves forward.
    fn most_in(&self, length: i128) -> i128 {
        let in_span = |first: &Grant| {
            let span = first.at..first.at + length;
            sum(self.passed.iter().filter(|grant| span.contains(&grant.at)))
        };
        self.passed.iter().map(in_span).max().unwrap_or(0)
    }
}

fn run<'a, P: Policy, R: Rule>(
    policy: &'a P,
    rule: R,
    terms: Terms,
    calls: &[Call],
) -> Result<Pair<'a, P, R>, TestCaseError> {
    let mut pair = Pair::new(policy, rule, terms);
    for call in calls {
        pair.call(call)?;
    }
    Ok(pair)
}

proptest! {
    #[test]
    fn a_log_does_what_an_obvious_one_does(terms in some_terms(), calls in some_calls(true)) {
        let policy = SlidingLog::new(terms.rate()?);
        run(&policy, Log, terms, &calls)?;
    }

    #[test]
    fn a_fixed_window_does_what_an_obvious_one_does(
        terms in some_terms(), unix in some_span(), offset in some_span(), calls in some_calls(true),
    ) {
        let policy = FixedWindow::new(terms.rate()?);
        run(&policy, Fixed { phase: Some(0) }, terms, &calls)?;
        let policy = policy.at_wall_clock(Duration::from_nanos(offset)).with_epoch(Duration::from_nanos(unix));
        run(&policy, Fixed { phase: Some(i128::from(offset) - i128::from(unix)) }, terms, &calls)?;
    }

    #[test]
    fn a_window_from_the_first_grant_does_what_an_obvious_one_does(terms in some_terms(), calls in some_calls(true)) {
        let policy = FixedWindow::new(terms.rate()?).from_first_grant();
        run(&policy, Fixed { phase: None }, terms, &calls)?;
    }

    #[test]
    fn a_sliding_window_does_what_an_obvious_one_does(
        terms in some_terms(), cells in 1u16..9, after_1970 in some_span(), offset in some_span(), calls in some_calls(true),
    ) {
        // For times before the first window of the epoch, see `tests/policy/cases.rs`.
        let unix = offset + after_1970;
        let policy = SlidingWindow::new(terms.rate()?, cells);
        run(&policy, Cells { cells: cells.into(), phase: 0 }, terms, &calls)?;
        let policy = policy.at_wall_clock(Duration::from_nanos(offset)).with_epoch(Duration::from_nanos(unix));
        run(&policy, Cells { cells: cells.into(), phase: i128::from(offset) - i128::from(unix) }, terms, &calls)?;
    }

    #[test]
    fn an_estimate_does_what_an_obvious_one_does(
        terms in some_terms(), unix in some_span(), offset in some_span(), calls in some_calls(false),
    ) {
        let policy = SlidingEstimate::new(terms.rate()?);
        run(&policy, Estimate { phase: 0 }, terms, &calls)?;
        let policy = policy.at_wall_clock(Duration::from_nanos(offset)).with_epoch(Duration::from_nanos(unix));
        run(&policy, Estimate { phase: i128::from(offset) - i128::from(unix) }, terms, &calls)?;
    }
}

// Changes

proptest! {
    #[test]
    fn in_a_log_what_was_granted_stays_granted(terms in some_terms(), calls in some_calls_and_changes()) {
        // For a reset to a longer window, and one with an older time than a refund, see
        // `tests/policy/cases.rs`.
        let count = |call| match call {
            Call::Change(terms, _) => Call::Change(terms, Keep::Count),
            Call::Refund(n) => Call::Try(n),
            call => call,
        };
        let calls: Vec<_> = calls.into_iter().map(count).collect();
        let policy = SlidingLog::new(terms.rate()?).with_capacity(12)?;
        run(&policy, Log, terms, &calls)?;
    }

    #[test]
    fn in_a_fixed_window_what_was_used_stays_used(terms in some_terms(), calls in some_calls_and_changes()) {
        let policy = FixedWindow::new(terms.rate()?);
        run(&policy, Fixed { phase: Some(0) }, terms, &calls)?;
        run(&FixedWindow::new(terms.rate()?).from_first_grant(), Fixed { phase: None }, terms, &calls)?;
    }

    #[test]
    fn in_a_sliding_window_what_was_counted_stays_counted(terms in some_terms(), cells in 1u16..9, calls in some_calls_and_changes()) {
        let policy = SlidingWindow::new(terms.rate()?, cells);
        run(&policy, Cells { cells: cells.into(), phase: 0 }, terms, &calls)?;
    }

    #[test]
    fn in_an_estimate_what_was_used_stays_used(terms in some_terms(), calls in some_calls_and_changes()) {
        let policy = SlidingEstimate::new(terms.rate()?);
        run(&policy, Estimate { phase: 0 }, terms, &calls)?;
    }
}

// Bounds

/// A caller that takes as much as possible, tries at any time, and undoes some grants.
fn some_grabs() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => (0u64..30).prop_map(Call::Pass),
        1 => (0..LONGEST).prop_map(Call::Pass),
        4 => (1u32..4).prop_map(Call::Wait),
        4 => Just(Call::TakeAll),
        1 => (0usize..6).prop_map(Call::Undo),
    ];
    vec(call, 1..80)
}

proptest! {
    #[test]
    fn a_log_never_lets_more_through_in_any_span(terms in some_terms(), calls in some_grabs()) {
        let policy = SlidingLog::new(terms.rate()?);
        let most = run(&policy, Log, terms, &calls)?.most_in(terms.length.into());
        prop_assert!(most <= terms.limit.into(), "{most}");
    }

    /// Grants at most the limit in each window that a stretch of length *d* touches: at most
    /// `d / length + 2` windows.
    #[test]
    fn a_fixed_window_lets_twice_as_much_through_in_a_span(
        terms in some_terms(), from_first: bool, windows in 0i128..4, calls in some_grabs(),
    ) {
        let (policy, length) = (FixedWindow::new(terms.rate()?), i128::from(terms.length));
        let most = match from_first {
            false => run(&policy, Fixed { phase: Some(0) }, terms, &calls)?.most_in(windows * length + 1),
            true => run(&policy.from_first_grant(), Fixed { phase: None }, terms, &calls)?.most_in(windows * length + 1),
        };
        prop_assert!(most <= (windows + 2) * i128::from(terms.limit), "{most}");
    }

    #[test]
    fn a_sliding_window_keeps_the_limit_in_all_but_one_cell(terms in some_terms(), cells in 1u16..9, calls in some_grabs()) {
        let (policy, rule) = (SlidingWindow::new(terms.rate()?, cells), Cells { cells: cells.into(), phase: 0 });
        let pair = run(&policy, rule, terms, &calls)?;
        let most = pair.most_in(rule.span(terms) - rule.length(terms));
        prop_assert!(most <= terms.limit.into(), "{most}");
        let in_a_window = pair.most_in(rule.span(terms));
        prop_assert!(in_a_window <= 2 * i128::from(terms.limit), "{in_a_window}");
    }

    #[test]
    fn an_estimate_keeps_below_twice_the_limit(terms in some_terms(), calls in some_grabs()) {
        let policy = SlidingEstimate::new(terms.rate()?);
        let most = run(&policy, Estimate { phase: 0 }, terms, &calls)?.most_in(terms.length.into());
        prop_assert!(most < 2 * i128::from(terms.limit) , "{most}");
    }
}

// The worst case of the estimate

/// Returns the most permits in a stretch shorter than a window, if a caller takes all available
/// permits in each of these thousandths of a window.
fn most_by_estimate(limit: u32, thousandths: impl IntoIterator<Item = u64>) -> Result<u64, Refusal> {
    let policy = SlidingEstimate::new(Rate::per_second(limit.into()));
    let state = policy.start(Nanos::ZERO);
    let mut taken = Vec::new();
    for thousandth in thousandths {
        let now = Nanos::new(thousandth * 1_000_000);
        let available = policy.status(&state, now).available;
        if let Ok(n) = u32::try_from(available)
            && n > 0
        {
            policy.try_acquire(&state, now, n)?;
            taken.push((thousandth, available));
        }
    }
    let in_span = |first: u64| {
        taken.iter().filter(|(at, _)| (first..first + 1000).contains(at)).map(|(_, n)| n).sum::<u64>()
    };
    Ok(taken.iter().map(|(first, _)| in_span(*first)).max().unwrap_or(0))
}

/// The caller takes all permits in the last thousandth of a window, and then all that the estimate
/// grants: the estimate assumes that the permits are evenly spread.
///
/// The search found nothing worse than a grant just before the edge, and all but one permit in the
/// window after it. That is twice the limit less one permit, and less another permit for a stretch
/// that ends before the window does.
#[test]
fn the_worst_estimate_lets_nearly_twice_the_limit_through() -> Result<(), Refusal> {
    for (limit, worst) in [(1, 1), (2, 3), (10, 19), (100, 199), (1000, 1998)] {
        assert_eq!(most_by_estimate(limit, 999..1999)?, worst);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_pattern_is_worse_for_the_estimate(limit in 2u32..2000, mut thousandths in vec(0u64..4000, 1..60), begins in 0u64..2000, step in 1u64..50) {
        thousandths.sort_unstable();
        let random = most_by_estimate(limit, thousandths)?;
        let steady = most_by_estimate(limit, (begins..4000).step_by(usize::try_from(step)?))?;
        let burst = most_by_estimate(limit, [begins].into_iter().chain((begins + step..4000).step_by(usize::try_from(step)?)))?;
        let worst = random.max(steady).max(burst);
        prop_assert!(worst < 2 * u64::from(limit), "{worst}");
    }
}
