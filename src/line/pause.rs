//! Pauses: no request passes, and no permits accrue.
//!
//! No thread runs when a pause ends. So the settings record what a pause must still do. Each lock
//! holder first does as much of that as is due.
//!
//! | `pause` | `pace` | time | the limiter is | a request |
//! |---|---|---|---|---|
//! | none | none | | open | needs no lock |
//! | none | | `opens` is [`Nanos::MAX`] | closed | takes the lock, and is refused |
//! | some | | before `opens` | paused | waits at least until `opens` |
//! | some | | from `opens` on | paused; the next lock holder ends the pause as of `opens` | takes the lock, and so ends the pause first |
//! | none | some | before the pace is over | open, and spaces its grants | takes the lock |
//! | none | some | later | the next lock holder forgets the pace | takes the lock |
//!
//! The flag `PAUSED` of the gate word is set in every row but the first, and while a composite that
//! has this limiter as a member is paused.
//!
//! **No permits accrue.** If stored permits and a negative balance are times, as in a bucket, each
//! lock holder moves the state on by the time since the last lock holder
//! ([`Policy::pause`](crate::Policy::pause)). So at any time the state is the state at the
//! beginning of the pause, except for what was given back, debited or changed since. A `resume` has
//! nothing left to do. At the end of the pause the stored permits are spent, as of `opens`, however
//! late the lock holder comes.
//!
//! A window counts in real time, and cannot stand still. So the pause has a [`Stock`] of the permits
//! that the window had, and a `resume` takes those that came back meanwhile. At the end of the pause
//! a [`Pace`] begins: the limiter behaves as if it were, besides the window, an empty bucket with
//! its rate and its limit. Both bounds hold until that bucket would be full. At that time the window
//! holds no permit that is older than the pause. A change of the terms keeps the permits of the
//! stock and of that bucket, and a reset ends both.
//!
//! **Each part** of a policy is paused by itself. So in a [`Both`](crate::policy::Both) of a bucket
//! and a window, the bucket stands still and the window has a pace.
//!
//! **The pause of a composite** leaves its members empty at its end. Each member has the end in
//! `emptied` from the beginning of the pause on, and the flag `PAUSED` is set until then. So the
//! first lock holder after the end leaves the limiter empty as of the end, and then does its work.
//!
//! **A request without the lock** may have read the gate word before the pause began, and call the
//! policy later. It overlaps with the call that pauses, and may pass. The permits that it takes are
//! missing from the state like any other: moving the state on keeps the negative balance. After the
//! end of the pause, the clock reading of such a request may be before `opens` or after it. Either
//! the request finds the state before the end, and takes stored permits that would have been spent
//! a moment later; or it finds the state after the end, and no stored permits. No update is lost,
//! because the policy moves its state by a CAS. So the stored permits are spent once.
//!
//! **A grant of a window that is undone** in a pause is undone under the lock, because the window
//! and its stock change together. If the pause begins while a grant is undone without the lock, the
//! stock gets the permits when the lock is taken, up to the permits that the window has by then. So
//! the stock is right if no permit came back to the window in real time meanwhile. A pause that
//! begins and is resumed during one undoing takes the permits of that grant.
//!
//! **Checked by** `loom-tests/control.rs` and `tests/limiter/pause.rs`.

use crate::clock::Timer;
use crate::line::grants::{Changed, GrantId, Made, Undoable};
use crate::line::rule::Rule;
use crate::line::undo_log::PerPart;
use crate::line::{Line, WokenBy};
use crate::policy::interval::Interval;
use crate::policy::{Forecast, Standstill, ticks};
use crate::rate::Rate;
use crate::time::Nanos;

/// What a pause must still do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PauseState {
    /// The state is as of this time.
    pub(crate) since: Nanos,
    /// Whether the limiter keeps the permits that it had, at the end of the pause.
    pub(crate) keeps_permits: bool,
    /// For each window part: the permits that were available at the beginning, and the permits
    /// given back since.
    stocks: Vec<Stock>,
}

/// The permits of a part. Negative if more were charged than there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stock {
    part: usize,
    permits: i64,
}

/// How the first grants after a pause are spaced, for a part of the policy that cannot stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) part: usize,
    /// The end of the pause. The pace holds until the limit has accrued since then.
    pub(crate) began: Nanos,
    /// The permits have accrued since this time, at the rate in force. It is the end of the pause,
    /// or another time after a change of the rate.
    pub(crate) from: Nanos,
    /// The permits granted since the end of the pause. Negative if more were given back since.
    pub(crate) granted: i64,
    /// The undo log's number at the beginning. Grants with a lower number are not counted here.
    number: u64,
}

/// What a pause and the paces that follow it withhold before a change of the terms.
pub(super) struct Restraints {
    paces: Vec<PaceTerms>,
    /// The limit of the part of each stock.
    limits: Vec<u64>,
}

/// A pace before a change of the terms.
struct PaceTerms {
    /// The time between two permits.
    interval: Interval,
    /// How many permits have accrued.
    accrued: u64,
    /// How many permits the pace allows.
    available: u64,
}

impl PauseState {
    fn new<R: Rule>(rule: &R, begin: Nanos, since: Nanos, keeps_permits: bool) -> PauseState {
        let counting = (0..R::PARTS).filter(|part| !rule.stands_still(*part));
        let stocks =
            counting.map(|part| Stock { part, permits: signed(available(rule, part, begin)) }).collect();
        PauseState { since, keeps_permits, stocks }
    }

    /// Returns the rest of the pause, which ends at `opens`.
    pub(super) fn until(&self, opens: Nanos) -> Standstill {
        Standstill { from: self.since, to: opens, keeps_permits: self.keeps_permits }
    }
}

impl Pace {
    pub(super) fn new(part: usize, from: Nanos) -> Pace {
        Pace { part, began: from, from, granted: 0, number: 0 }
    }
}

impl<R: Rule, C: Timer> Line<R, C> {
    /// Notes the time, and does what a pause must do by then. Each lock holder calls this first.
    pub(crate) fn begin_visit(&mut self, rule: &R, now: Nanos) {
        self.note_time(now);
        if self.settings.is_restrained() {
            self.advance_pause(rule);
        }
    }

    /// Like [`begin_visit`](Line::begin_visit), for a lock holder that cannot serve waiters. While
    /// waiters must still be served [before](Line::must_serve_before) the end of a pause, that end
    /// is left to a lock holder that can serve them.
    pub(crate) fn begin_check(&mut self, rule: &R, now: Nanos, catch_up: Nanos) {
        if self.must_serve_before(now, catch_up).is_none() {
            self.begin_visit(rule, now);
        }
    }

    #[cold]
    fn advance_pause(&mut self, rule: &R) {
        let now = self.latest;
        // The last end leaves the state that all of them together leave.
        let mut last = None;
        while let Some(first) = self.settings.emptied.first_entry().filter(|first| *first.key() <= now) {
            last = Some(first.remove_entry().0);
        }
        if let Some(at) = last {
            self.advance_pause_until(rule, at);
            self.leave_empty(rule, at);
        }
        self.advance_pause_until(rule, now);
    }

    /// Returns the time before which waiters must still be served, if a pause of a composite has
    /// ended by `now` and has not left the limiter empty yet: a timer may be a moment late, and
    /// nothing wakes a reservation that no task awaits.
    pub(crate) fn must_serve_before(&self, now: Nanos, catch_up: Nanos) -> Option<Nanos> {
        let (&at, _) = self.settings.emptied.first_key_value().filter(|(at, _)| **at <= now)?;
        let head = self.entries.get(self.head as usize).filter(|_| self.settings.pause.is_none())?;
        let unattended = matches!(head.woken_by, WokenBy::Nothing);
        (unattended || now.saturating_since(at) <= catch_up)
            .then_some(Nanos::new(at.as_u64().saturating_sub(1)))
    }

    fn advance_pause_until(&mut self, rule: &R, now: Nanos) {
        let opens = self.settings.opens;
        if let Some(pause) = self.settings.pause.take() {
            let over = opens <= now;
            let (from, to) = (pause.since, now.min(opens).max(pause.since));
            let ends = over && !pause.keeps_permits;
            // If the policy panics, the pause must not end twice.
            self.settings.pause = (!over).then_some(PauseState { since: to, ..pause });
            if to > from {
                let held = to.saturating_since(from);
                self.settings.paces.iter_mut().for_each(|pace| *pace = pace.moved_by(held));
                // The room of a part in which no permits accrue does not shrink.
                let stop = Standstill::keeping(from, to);
                self.pause_parts(rule, stop, |part| rule.full_level(from, part));
            }
            if ends {
                self.spend_stock(rule, to);
                self.settings.paces.clear();
                self.begin_paces(rule, to, |_| true);
            }
        }
        // A reservation in the queue may have been due long ago, while the pace held.
        if self.settings.pause.is_none() && self.len() == 0 {
            self.settings.paces.retain(|pace| !pace.is_over(rule, now));
        }
    }

    /// Leaves each part empty that can stand still. The permits that earlier grants took are spent
    /// as well: these grants give back no more than the negative balance beyond that.
    fn spend_stock(&mut self, rule: &R, at: Nanos) {
        self.pause_parts(rule, Standstill::end(at), |part| {
            rule.of_part(None, part, |part| part.empty_level(at))
        });
    }

    /// Pauses each part, and notes the levels that it leaves and the room above `full`.
    fn pause_parts(&mut self, rule: &R, stop: Standstill, full: impl Fn(usize) -> u64) {
        self.memo.set(None);
        let levels = PerPart::new(R::PARTS, |part| rule.pause(part, stop));
        // A part that goes on in real time loses no permits by being full.
        let level = |part| levels.iter().nth(part).copied().flatten().unwrap_or(u64::MAX);
        self.undo_log.refund(full, level);
    }

    /// Spaces the grants of some window parts from a time on.
    fn begin_paces(&mut self, rule: &R, from: Nanos, of: impl Fn(usize) -> bool) {
        self.memo.set(None);
        // The log is touched so that grants from before have lower numbers.
        self.undo_log.touch();
        let number = self.undo_log.number();
        self.settings.paces.retain(|pace| !of(pace.part));
        let parts = (0..R::PARTS).filter(|part| of(*part) && !rule.stands_still(*part));
        self.settings.paces.extend(parts.map(|part| Pace { number, ..Pace::new(part, from) }));
    }

    /// Begins or extends a pause. Returns whether anything has changed, and whether the pause ends
    /// later than before.
    pub(crate) fn pause(&mut self, rule: &R, until: Nanos, keeps_permits: bool) -> (bool, bool) {
        let (now, settings) = (self.latest, &mut self.settings);
        if until <= now {
            return (false, false);
        }
        let later = until > settings.opens;
        settings.opens = settings.opens.max(until);
        let is_new = settings.pause.is_none();
        let pause = settings.pause.get_or_insert_with(|| PauseState::new(rule, now, now, true));
        let spends = pause.keeps_permits && !keeps_permits;
        pause.keeps_permits &= keeps_permits;
        self.memo.set(None);
        (is_new || spends || later, later)
    }

    /// Starts a new queue with a pause that began earlier, and may be over.
    #[cfg(feature = "keyed")]
    pub(crate) fn begin_paused(&mut self, rule: &R, begin: Nanos, stop: Standstill) {
        let Standstill { from, to, keeps_permits } = stop;
        self.settings.opens = to;
        self.settings.pause = Some(PauseState::new(rule, begin, from, keeps_permits));
    }

    /// Starts a new queue at a time at which the grants of some parts are spaced.
    #[cfg(feature = "keyed")]
    pub(crate) fn begin_spaced(&mut self, from: Vec<(usize, Nanos)>) {
        self.settings.paces = from.into_iter().map(|(part, from)| Pace::new(part, from)).collect();
    }

    /// Ends a pause with the permits that are stored, unless the limiter is closed. Returns whether
    /// the limiter was paused.
    pub(crate) fn resume(&mut self, rule: &R) -> bool {
        if self.settings.closed {
            return false;
        }
        let paused = self.is_paused();
        self.settings.opens = self.settings.opens.min(self.latest);
        self.memo.set(None);
        self.take_withheld(rule);
        self.settings.pause = None;
        paused
    }

    /// Forgets a pause and its consequences, unless the limiter is closed. Returns whether the
    /// limiter was paused.
    pub(crate) fn reset_pause(&mut self) -> bool {
        if self.settings.closed {
            return false;
        }
        let paused = self.is_paused();
        self.settings.opens = self.settings.opens.min(self.latest);
        self.settings.pause = None;
        self.settings.paces.clear();
        paused
    }

    /// Leaves the limiter as if it were empty at a time, for a composite with a pause that ended
    /// then.
    fn leave_empty(&mut self, rule: &R, at: Nanos) {
        self.spend_stock(rule, at);
        // A pace that began later allows less.
        let later = |pace: &&Pace| pace.began >= at;
        let spaced: Vec<usize> = self.settings.paces.iter().filter(later).map(|pace| pace.part).collect();
        self.begin_paces(rule, at, |part| !spaced.contains(&part));
    }

    /// Leaves the limiter as if it were empty at the time `at`, for a composite with a pause that
    /// ends then. The limiter is no longer left empty at `before`, the former end of that pause.
    pub(crate) fn empty_at(&mut self, now: Nanos, before: Option<Nanos>, at: Option<Nanos>) {
        let emptied = &mut self.settings.emptied;
        at.into_iter().for_each(|at| *emptied.entry(at).or_default() += 1);
        // An end that has passed has been applied, or will be once the waiters before it are served.
        if let Some(before) = before.filter(|before| *before > now)
            && let Some(count) = emptied.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                emptied.remove(&before);
            }
        }
    }

    /// Counts permits that were granted.
    pub(crate) fn count_in_pace(&mut self, permits: u64) {
        for pace in &mut self.settings.paces {
            pace.granted = pace.granted.saturating_add(signed(permits));
        }
    }

    /// Uncounts a grant that is given back, or the part of it that the charge states. A part of
    /// which `is_undone` returns `true` has these permits already.
    pub(crate) fn uncount(
        &mut self,
        rule: &R,
        grant: &Undoable<R::Charge>,
        is_undone: impl Fn(usize) -> bool,
    ) {
        let (charge, Made::Tracked(GrantId(number)) | Made::Since(number)) = (&grant.charge, &grant.made);
        if let Some(pause) = &mut self.settings.pause {
            for Stock { part, permits } in &mut pause.stocks {
                *permits = permits.saturating_add(signed(permits_of(rule, charge, *part)));
                if is_undone(*part) {
                    // The pause began meanwhile, and the part may have had these permits by then.
                    *permits = (*permits).min(signed(available(rule, *part, self.latest)));
                }
            }
        }
        for pace in self.settings.paces.iter_mut().filter(|pace| *number >= pace.number) {
            pace.granted = pace.granted.saturating_sub(signed(permits_of(rule, charge, pace.part)));
        }
    }

    /// Counts permits that are given back, or with a negative number charged, and belong to no
    /// grant.
    pub(super) fn count_unassigned(&mut self, permits: i64) {
        for stock in self.settings.pause.iter_mut().flat_map(|pause| &mut pause.stocks) {
            stock.permits = stock.permits.saturating_add(permits);
        }
        for pace in &mut self.settings.paces {
            pace.granted = pace.granted.saturating_sub(permits);
        }
    }

    /// Limits the available permits of a pause to `permits`. The part that has the fewest keeps
    /// `permits`, and each other part is charged as many permits as that one.
    pub(crate) fn stock_at_most(&mut self, rule: &R, permits: u64) {
        let paced = self.paced(rule, self.latest);
        let Some(pause) = &mut self.settings.pause else { return };
        let still = (0..R::PARTS).filter(|part| rule.stands_still(*part));
        let still = still.map(|part| available(rule, part, self.latest));
        let counted = pause.stocks.iter().map(|stock| unsigned(stock.permits));
        let fewest = still.chain(counted).min().unwrap_or(0).min(paced);
        for stock in &mut pause.stocks {
            stock.permits = stock.permits.saturating_sub(signed(fewest.saturating_sub(permits)));
        }
    }

    /// Returns what a pause and the paces withhold before a change of the terms.
    pub(super) fn restraints(&self, rule: &R) -> Restraints {
        let now = self.latest;
        let terms = |pace: &Pace| PaceTerms {
            interval: pace.interval(rule),
            accrued: pace.accrued(rule, now),
            available: pace.available(rule, now),
        };
        let stocks = self.settings.pause.iter().flat_map(|pause| &pause.stocks);
        Restraints {
            paces: self.settings.paces.iter().map(terms).collect(),
            limits: stocks.map(|stock| limit(rule, stock.part, now)).collect(),
        }
    }

    /// Takes from each window the permits that came back during a pause, unless the pause keeps
    /// them.
    pub(super) fn take_withheld(&self, rule: &R) {
        let pause = self.settings.pause.as_ref().filter(|pause| !pause.keeps_permits);
        for Stock { part, permits } in pause.into_iter().flat_map(|pause| &pause.stocks) {
            rule.of_part(None, *part, |part| part.keep_at_most(self.latest, unsigned(*permits)));
        }
    }

    /// Converts the stocks of a pause after a change of the terms, as the windows convert their
    /// used permits. A window without a limit counts none, so a stock from before or after it is
    /// what the window has now. A part that has become one that can stand still needs no stock, and
    /// has no more permits than its stock had.
    pub(super) fn convert_stocks(&mut self, rule: &R, before: &Restraints, changed: Changed) {
        let (now, Some(pause)) = (self.latest, &mut self.settings.pause) else { return };
        let old = std::mem::take(&mut pause.stocks);
        let converted = |part| {
            let (stock, before) = old.iter().zip(&before.limits).find(|(stock, _)| stock.part == part)?;
            let limits = [*before, limit(rule, part, now)];
            let is_counted = !changed.resets(part) && !limits.contains(&u64::MAX);
            is_counted.then(|| changed.stock(part, stock.permits, limits.map(signed)))
        };
        let (still, counting): (Vec<usize>, Vec<usize>) =
            (0..R::PARTS).partition(|part| rule.stands_still(*part));
        pause.stocks = counting
            .into_iter()
            .map(|part| {
                let permits = converted(part).unwrap_or_else(|| signed(available(rule, part, now)));
                Stock { part, permits }
            })
            .collect();
        for part in still.into_iter().filter(|_| !pause.keeps_permits) {
            if let Some(permits) = converted(part) {
                rule.of_part(None, part, |part| part.keep_at_most(now, unsigned(permits)));
            }
        }
    }

    /// Returns the most permits that a window has at the end of a pause.
    pub(crate) fn stocked(&self) -> u64 {
        let pause = self.settings.pause.as_ref().filter(|pause| !pause.keeps_permits);
        let stocks = pause.into_iter().flat_map(|pause| &pause.stocks);
        stocks.map(|stock| unsigned(stock.permits)).min().unwrap_or(u64::MAX)
    }

    /// Converts each pace from its terms before a change: as many permits have accrued by now. So
    /// changes that come more often than permits hold up nothing. A pace that is over, or whose
    /// part is reset, ends. At a rate of zero a pace stands still. A part that has become one that
    /// can stand still needs no pace, and has no more permits than the pace allowed.
    pub(super) fn convert_paces(&mut self, rule: &R, before: &Restraints, changed: Changed) {
        let (now, mut anew) = (self.latest, Vec::new());
        for (mut pace, before) in std::mem::take(&mut self.settings.paces).into_iter().zip(&before.paces) {
            if changed.resets(pace.part) || before.available == u64::MAX {
                continue;
            }
            if rule.stands_still(pace.part) {
                rule.of_part(None, pace.part, |part| part.keep_at_most(now, before.available));
                continue;
            }
            let new = pace.interval(rule);
            if before.interval.is_unlimited() || new.is_unlimited() {
                // Permits of the one are not worth permits of the other.
                anew.push(pace.part);
            } else if new != before.interval && pace.from < now {
                pace.convert(now, before, new);
            }
            self.settings.paces.push(pace);
        }
        if !anew.is_empty() {
            self.begin_paces(rule, now, |part| anew.contains(&part));
        }
    }

    /// Returns the most permits that are available at a time under a pause and the paces that
    /// follow it.
    pub(crate) fn restraint(&self, rule: &R, at: Nanos) -> u64 {
        if self.settings.pause.is_some() {
            return 0;
        }
        self.paced(rule, at)
    }

    /// Returns the most permits that the paces allow at a time.
    pub(crate) fn paced(&self, rule: &R, at: Nanos) -> u64 {
        // A pace that was over before the waiters were served counts their permits, and no longer
        // restrains.
        let paced = self.settings.paces.iter().map(|pace| pace.available(rule, at));
        paced.min().unwrap_or(u64::MAX)
    }

    /// Begins a forecast of the grants to come, after a pause if there is one.
    pub(super) fn forecast(&self, rule: &R, now: Nanos) -> Forecast {
        let opens = self.settings.opens_for(now);
        let paused = self.settings.pause.as_ref().and_then(|pause| rule.forecast_pause(pause.until(opens)));
        paused.unwrap_or_else(|| rule.forecast(now.max(opens)))
    }

    /// Returns when a request is due behind all requests in the forecast. Adds the request to the
    /// forecast.
    pub(super) fn predict(&self, rule: &R, forecast: &mut Forecast, ask: &R::Ask, priority: i8) -> Nanos {
        let kept = self.settings.kept_from(priority);
        if !self.settings.is_restrained() {
            return rule.predict(forecast, ask, kept);
        }
        let last = forecast.at;
        for pace in self.settings.paces_to_come(rule) {
            forecast.at = forecast.at.max(pace.due(rule, forecast.paced, ask, kept));
        }
        let due = if forecast.at < Nanos::MAX { rule.predict(forecast, ask, kept) } else { Nanos::MAX };
        if due < Nanos::MAX {
            forecast.paced = forecast.paced.saturating_add(rule.permits(ask));
        } else {
            forecast.at = last;
        }
        due
    }
}

/// Returns the permits that are available in a part.
fn available<R: Rule>(rule: &R, part: usize, now: Nanos) -> u64 {
    rule.of_part(None, part, |part| part.status(now).available)
}

fn limit<R: Rule>(rule: &R, part: usize, now: Nanos) -> u64 {
    rule.of_part(None, part, |part| part.status(now).limit)
}

fn signed(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(i64::MAX)
}

fn unsigned(permits: i64) -> u64 {
    permits.max(0).unsigned_abs()
}

/// Returns how many permits a grant took of a window part; see
/// [`Policy::permits`](crate::Policy::permits).
fn permits_of<R: Rule>(rule: &R, charge: &R::Charge, part: usize) -> u64 {
    rule.of_part(Some(charge), part, |part| part.permits()).into()
}

/// Returns whether permits accrue at this rate.
fn accrues(interval: Interval) -> bool {
    interval.price(1) < ticks::NEVER
}

impl Pace {
    /// Returns the time between two permits of the part.
    fn interval<R: Rule>(self, rule: &R) -> Interval {
        let interval = rule.of_part(None, self.part, |part| Some(part.interval()));
        interval.unwrap_or(Interval::new(Rate::UNLIMITED))
    }

    /// Returns when the part would be full, as far as the pace determines. At a rate of zero it
    /// never would.
    pub(super) fn ends<R: Rule>(self, rule: &R) -> Nanos {
        match accrues(self.interval(rule)) {
            true => rule.of_part(None, self.part, |part| part.spaced_until(self.began)),
            false => Nanos::MAX,
        }
    }

    fn is_over<R: Rule>(self, rule: &R, now: Nanos) -> bool {
        self.ends(rule) <= now
    }

    /// Returns how many permits the pace allows at a time.
    fn available<R: Rule>(self, rule: &R, at: Nanos) -> u64 {
        match self.is_over(rule, at) {
            true => u64::MAX,
            false => self.accrued(rule, at).saturating_add_signed(self.granted.saturating_neg()),
        }
    }

    /// Returns how many permits have accrued by a time.
    fn accrued<R: Rule>(self, rule: &R, at: Nanos) -> u64 {
        rule.of_part(None, self.part, |part| part.accrued_between(self.from, at))
    }

    /// Continues at another rate with as many permits as have accrued by `now`.
    fn convert(&mut self, now: Nanos, before: &PaceTerms, new: Interval) {
        let old = before.interval;
        if !accrues(old) {
            self.began = self.began.saturating_add(now.saturating_since(self.from));
        }
        let span = ticks::from_nanos(now).saturating_sub(ticks::from_nanos(self.from));
        let span = old.convert(span, new, false) / ticks::PER_NANO;
        match now.as_u64().checked_sub(span).filter(|_| accrues(old) && accrues(new)) {
            Some(from) => self.from = Nanos::new(from),
            // The permits do not accrue, or at the new rate they would have begun to accrue before
            // the clock began.
            None => {
                self.granted = self.granted.saturating_sub(signed(before.accrued));
                self.from = now;
            }
        }
    }

    /// Returns the pace after a pause of this length, in which no permits accrue.
    fn moved_by(self, held: Nanos) -> Pace {
        Pace { began: self.began.saturating_add(held), from: self.from.saturating_add(held), ..self }
    }

    /// Returns when the permits of a request have accrued behind `ahead` permits, if it must leave
    /// `kept` permits.
    pub(super) fn due<R: Rule>(self, rule: &R, ahead: u64, ask: &R::Ask, kept: u32) -> Nanos {
        let permits = ahead.saturating_add(rule.permits(ask)).saturating_add(kept.into());
        let permits = permits.saturating_add_signed(self.granted);
        rule.of_part(None, self.part, |part| part.accrued_at(self.from, permits)).min(self.ends(rule))
    }
}

impl super::settings::Settings {
    /// Returns whether a pause or its consequences hold for requests.
    pub(crate) fn is_restrained(&self) -> bool {
        self.pause.is_some() || !self.paces.is_empty() || !self.emptied.is_empty()
    }

    /// Returns when a pause will leave the limiter empty.
    pub(crate) fn leaves_empty(&self) -> Option<Nanos> {
        let ends = self.pause.as_ref().is_some_and(|pause| !pause.keeps_permits) && self.opens < Nanos::MAX;
        ends.then_some(self.opens)
    }

    /// Returns the paces that hold, or that will hold after the pause.
    pub(super) fn paces_to_come<R: Rule>(&self, rule: &R) -> impl Iterator<Item = Pace> {
        let ends = self.pause.as_ref().is_some_and(|pause| !pause.keeps_permits);
        let held = self.pause.as_ref().map_or(Nanos::ZERO, |pause| self.opens.saturating_since(pause.since));
        let go_on = self.paces.iter().filter(move |_| !ends);
        let go_on = go_on.map(move |pace| pace.moved_by(held));
        let begin = (0..R::PARTS).filter(move |part| ends && !rule.stands_still(*part));
        go_on.chain(begin.map(|part| Pace::new(part, self.opens)))
    }
}
