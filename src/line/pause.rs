//! Pauses: nothing passes, and nothing comes in.
//!
//! No thread runs when a pause ends. So the settings say what a pause still has to do, and each
//! holder of the lock does as much of it as is due before it looks at anything else.
//!
//! | `pause` | `pace` | time | the limiter is | a request |
//! |---|---|---|---|---|
//! | none | none | | open | needs no lock |
//! | some | | before `opens` | paused | waits at least until `opens` |
//! | some | | from `opens` on | paused; the next lock holder ends the pause as of `opens` | takes the lock, and so ends the pause first |
//! | none | some | before the pace is over | open, and spaces its grants | takes the lock |
//! | none | some | later | the next lock holder forgets the pace | takes the lock |
//!
//! The flag `PAUSED` of the gate word is up in every row but the first.
//!
//! **Nothing comes in.** Where stock and debt are times, as in a bucket, each lock holder moves the
//! state on by the time since the last one ([`Policy::pause`](crate::Policy::pause)). So at any
//! time the state is what it was at the beginning, but for what was given back, debited or changed
//! since. A `resume` has nothing left to do. At the end the stock is spent, as of `opens`, however
//! late the lock holder comes.
//!
//! A window counts in real time, and cannot stand still. A `resume` takes the permits that came
//! back meanwhile. At the end a [`Pace`] begins: as if the limiter were an empty bucket of its rate
//! and its limit, beside the window. Both hold until that bucket would be full, which is when the
//! window holds no permit that is older than the pause.
//!
//! **A request without the lock** may have read the gate word before the pause began, and ask the
//! policy later. It overlaps with the call that pauses, and may pass. The permits that it takes are
//! missing from the state like any other: moving the state on keeps the debt. After the end its
//! clock reading may be older than `opens`, or newer: either way it finds the state before the end,
//! and takes stock that would have been spent a moment later, or the state after it, and finds
//! none. No exchange is lost, since the policy moves its state by a compare-and-swap. So the stock
//! is spent once.
//!
//! **Checked by** `loom-tests/control.rs` and `tests/limiter/pause.rs`.

use crate::clock::Timer;
use crate::line::Line;
use crate::line::deferred::Deferred;
use crate::line::rule::Rule;
use crate::line::visit::Visit;
use crate::policy::Forecast;
use crate::time::Nanos;

/// What a pause has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pausing {
    /// The state is as of this time.
    pub(crate) since: Nanos,
    /// Whether the limiter goes on with the permits that it had, at the end.
    pub(crate) keeps_stock: bool,
    /// The permits that were available at the beginning, and the permits given back since. Only
    /// where the policy counts in real time.
    stock: u64,
}

/// How the first grants after a pause are spaced, where the policy cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The end of the pause.
    pub(crate) from: Nanos,
    /// The permits granted since.
    pub(crate) granted: u64,
    /// The undo log's number then. Grants with a lower one are not counted here.
    number: u64,
}

impl Pausing {
    /// The pause of a composite, during which its members went on for others until it ended.
    pub(super) fn of_composite(end: Nanos) -> Pausing {
        Pausing { since: end, keeps_stock: false, stock: 0 }
    }
}

impl Pace {
    pub(super) fn new(from: Nanos) -> Pace {
        Pace { from, granted: 0, number: 0 }
    }
}

impl<R: Rule<C>, C: Timer> Line<R, C> {
    /// Notes the time, and does what a pause has to do by then. Each lock holder calls it first.
    pub(crate) fn arrive(&mut self, rule: &R, now: Nanos, deferred: &mut Deferred<C>) {
        self.note_time(now);
        if self.settings.is_restrained() {
            self.pause_goes_on(rule, deferred);
        }
    }

    #[cold]
    fn pause_goes_on(&mut self, rule: &R, deferred: &mut Deferred<C>) {
        let (now, opens) = (self.latest, self.settings.opens);
        if let Some(pause) = self.settings.pause {
            let over = opens <= now;
            let (from, to) = (pause.since, now.min(opens).max(pause.since));
            let ends = over && !pause.keeps_stock;
            if to > from || ends {
                self.memo.set(None);
                // A panic of the policy must not end the pause twice.
                let settings = &mut self.settings;
                settings.pause = (!over).then_some(Pausing { since: to, ..pause });
                if let Some(pace) = &mut settings.pace {
                    pace.from = pace.from.saturating_add(to.saturating_since(from));
                }
                match rule.pause(from, to, !ends, deferred) {
                    // The room of a limiter in which nothing comes in does not shrink.
                    Some(level) => {
                        self.undo_log.refund(|part| rule.full_level(from, part), |_| level);
                        // The kind of policy may have changed since a pace began. A state that is
                        // emptied now allows less than that pace.
                        self.settings.pace = self.settings.pace.filter(|_| !ends);
                    }
                    None if ends => self.begin_pace(to),
                    // Keeping the stock, a window goes on in real time.
                    None => {}
                }
            } else if over {
                self.settings.pause = None;
            }
        }
        // A reservation in line may have been due long ago, while the pace held.
        if self.settings.pause.is_none()
            && self.len() == 0
            && let Some(pace) = self.settings.pace
            && rule.pace_is_over(pace.from) <= now
        {
            self.settings.pace = None;
        }
    }

    /// Spaces the grants from a time on.
    fn begin_pace(&mut self, from: Nanos) {
        self.memo.set(None);
        // So that grants from before have lower numbers.
        self.undo_log.touch();
        self.settings.pace = Some(Pace { from, granted: 0, number: self.undo_log.number() });
    }

    /// Begins a pause, or prolongs it. Returns whether anything has changed, and whether it ends
    /// later than before.
    pub(crate) fn pause(&mut self, rule: &R, until: Nanos, keeps_stock: bool) -> (bool, bool) {
        let (now, settings) = (self.latest, &mut self.settings);
        if until <= now {
            return (false, false);
        }
        let before = (settings.opens, settings.pause);
        let new = || Pausing { since: now, keeps_stock: true, stock: rule.available(now) };
        settings.pause.get_or_insert_with(new).keeps_stock &= keeps_stock;
        settings.opens = settings.opens.max(until);
        self.memo.set(None);
        (before != (self.settings.opens, self.settings.pause), self.settings.opens > before.0)
    }

    /// Begins a new line with a pause that began earlier, in a time in which grants were spaced if
    /// there is a `pace`. The pause may be over.
    #[cfg(feature = "keyed")]
    pub(crate) fn was_paused(
        &mut self,
        (begin, since, opens): (Nanos, Nanos, Nanos),
        keeps_stock: bool,
        pace: Option<Nanos>,
        rule: &R,
    ) {
        self.settings.opens = opens;
        self.settings.pace = pace.map(Pace::new);
        self.settings.pause = Some(Pausing { since, keeps_stock, stock: rule.available(begin) });
    }

    /// Ends a pause with the stock there is, unless the limiter is closed. Returns whether there
    /// was one.
    pub(crate) fn resume(&mut self, rule: &R) -> bool {
        if self.settings.closed {
            return false;
        }
        let paused = self.is_paused();
        self.settings.opens = self.settings.opens.min(self.latest);
        self.memo.set(None);
        if let Some(pause) = self.settings.pause.take().filter(|pause| !pause.keeps_stock) {
            rule.keep_stock(self.latest, pause.stock);
        }
        paused
    }

    /// Forgets a pause and what follows from it, unless the limiter is closed. Returns whether
    /// there was one.
    pub(crate) fn reset_pause(&mut self) -> bool {
        if self.settings.closed {
            return false;
        }
        let paused = self.is_paused();
        self.settings.opens = self.settings.opens.min(self.latest);
        (self.settings.pause, self.settings.pace) = (None, None);
        paused
    }

    /// Leaves the limiter as if it were empty at a time, for a composite with a pause that ended
    /// then.
    pub(crate) fn empty(&mut self, visit: &mut Visit<'_, R, C>, at: Nanos) {
        self.memo.set(None);
        match visit.rule.pause(at, at, false, visit.deferred) {
            Some(_) => self.debited(),
            // A pace that began later allows less.
            None if self.settings.pace.is_some_and(|pace| pace.from >= at) => {}
            None => self.begin_pace(at),
        }
    }

    /// Permits were granted.
    pub(super) fn count_in_pace(&mut self, permits: u64) {
        if let Some(pace) = &mut self.settings.pace {
            pace.granted = pace.granted.saturating_add(permits);
        }
    }

    /// Permits of a grant with this number in the undo log are given back.
    pub(super) fn uncount(&mut self, permits: u64, number: u64) {
        self.stock_grows(permits);
        if let Some(pace) = &mut self.settings.pace
            && number >= pace.number
        {
            pace.granted = pace.granted.saturating_sub(permits);
        }
    }

    /// Permits are given back that belong to no grant.
    pub(super) fn stock_grows(&mut self, permits: u64) {
        if let Some(pause) = &mut self.settings.pause {
            pause.stock = pause.stock.saturating_add(permits);
        }
    }

    /// No more permits than so many are available.
    pub(crate) fn stock_at_most(&mut self, permits: u64) {
        if let Some(pause) = &mut self.settings.pause {
            pause.stock = pause.stock.min(permits);
        }
    }

    /// The rate has changed. Permits that came in at the old rate have another worth at the new
    /// one.
    pub(super) fn pace_anew(&mut self) {
        if let Some(Pace { from, .. }) = self.settings.pace
            && from < self.latest
        {
            self.begin_pace(self.latest);
        }
    }

    /// The most permits that are available, by a pause and the pace that follows it.
    pub(crate) fn restraint(&self, rule: &R) -> u64 {
        match (self.settings.pause, self.settings.pace) {
            (Some(_), _) => 0,
            (None, Some(pace)) => rule.came_in(pace.from, self.latest).saturating_sub(pace.granted),
            (None, None) => u64::MAX,
        }
    }

    /// Begins a forecast of the grants to come, after a pause if there is one.
    pub(super) fn forecast(&self, rule: &R, now: Nanos) -> Forecast {
        let opens = self.settings.opens;
        let paused = |pause: Pausing| rule.forecast_pause(pause.since, opens, pause.keeps_stock);
        self.settings.pause.and_then(paused).unwrap_or_else(|| rule.forecast(now.max(opens)))
    }

    /// When a request is due behind all that were foreseen; and foresees it, too.
    pub(super) fn foresee(&self, rule: &R, forecast: &mut Forecast, ask: &R::Ask, priority: i8) -> Nanos {
        let kept = self.settings.kept_from(priority);
        let Some(pace) = self.settings.pace_to_come(rule) else {
            return rule.foresee(forecast, ask, kept);
        };
        let mark = forecast.mark();
        let granted = pace.granted.saturating_add(forecast.paced);
        forecast.at = forecast.at.max(rule.paced(pace.from, granted, ask, kept));
        let due = if forecast.at < Nanos::MAX { rule.foresee(forecast, ask, kept) } else { Nanos::MAX };
        if due < Nanos::MAX {
            forecast.paced = forecast.paced.saturating_add(rule.permits(ask));
        } else {
            forecast.go_back(&mark);
        }
        due
    }
}

impl super::settings::Settings {
    /// Whether a pause or its consequences hold for requests.
    pub(crate) fn is_restrained(&self) -> bool {
        self.pause.is_some() || self.pace.is_some()
    }

    /// The pace that holds, or that will hold after the pause.
    pub(super) fn pace_to_come<C: Timer, R: Rule<C>>(&self, rule: &R) -> Option<Pace> {
        let Some(pause) = self.pause else { return self.pace };
        if pause.keeps_stock {
            let held = self.opens.saturating_since(pause.since);
            return self.pace.map(|pace| Pace { from: pace.from.saturating_add(held), ..pace });
        }
        rule.forecast_pause(pause.since, self.opens, false).is_none().then_some(Pace::new(self.opens))
    }
}
