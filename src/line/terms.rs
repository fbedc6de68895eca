//! When a request is due, by the policy, the kept share and a pause.

use crate::clock::Timer;
use crate::line::pause::{Pace, Pausing};
use crate::line::rule::{OneRule, Rule};
use crate::line::settings::Settings;
use crate::time::Nanos;

/// The terms of a limiter: its policy with the state, and its settings.
pub(crate) struct Terms<'a, R> {
    pub(crate) rule: &'a R,
    pub(crate) settings: &'a Settings,
    /// When the limiter will be emptied, at the end of a composite's pause.
    pub(crate) emptied: Option<Nanos>,
}

impl<R> Terms<'_, R> {
    /// When the limiter is full if no request takes permits: not before the end of a pause, in
    /// which no permit comes in, and not while grants are spaced after it.
    pub(crate) fn full_at<C: Timer>(&self, now: Nanos) -> Nanos
    where
        R: OneRule<C>,
    {
        let &Terms { rule, settings, .. } = self;
        let stands_still = settings
            .pause
            .and_then(|pause| rule.full_after_pause(pause.since, settings.opens, pause.keeps_stock));
        let full_at = stands_still.unwrap_or_else(|| rule.status(now).full_at);
        let paced = settings.pace_to_come(rule).map_or(Nanos::ZERO, |pace| rule.pace_is_over(pace.from));
        full_at.max(paced).max(settings.opens)
    }

    /// When a request of this priority is due behind all that are `ahead`.
    pub(crate) fn due<C: Timer>(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos
    where
        R: Rule<C>,
    {
        let opens = self.settings.opens;
        if opens == Nanos::MAX {
            return opens;
        }
        // As of the end of a pause, since permits accrue until then, up to the burst.
        self.ready_at(now.max(opens), priority, ahead, ask).max(opens)
    }

    /// When a request is due of which nothing is to happen before `now`, at or after the end of a
    /// pause.
    pub(crate) fn ready_at<C: Timer>(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos
    where
        R: Rule<C>,
    {
        let (rule, settings, kept) = (self.rule, self.settings, self.settings.kept_from(priority));
        let due = match settings.pause {
            Some(pause) => rule.ready_after_pause(pause, (settings.opens, now), ahead, ask, kept),
            None if kept > 0 => rule.ready_at(now, ahead, ask).max(rule.ready_leaving(now, ahead, ask, kept)),
            None => rule.ready_at(now, ahead, ask),
        };
        let paced = |pace: Pace| {
            let granted = pace.granted.saturating_add(rule.permits_in(ahead));
            rule.paced(pace.from, granted, ask, kept)
        };
        let due = settings.pace_to_come(rule).map_or(due, |pace| due.max(paced(pace)));
        match self.emptied {
            Some(at) => {
                let due =
                    due.max(rule.ready_after_pause(Pausing::of_composite(at), (at, now), ahead, ask, kept));
                let stands_still = rule.forecast_pause(at, at, false).is_some();
                if stands_still { due } else { due.max(paced(Pace::new(at))) }
            }
            None => due,
        }
    }
}
