//! When a request is due, by the policy, the kept share and a pause.

use crate::clock::Timer;
use crate::line::pause::{Pace, Stop};
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
        let pause = settings.pause.as_ref();
        let stands_still = pause.and_then(|pause| rule.full_after_pause(pause.until(settings.opens)));
        let full_at = stands_still.unwrap_or_else(|| rule.status(now).full_at);
        let paced = settings.paces_to_come(rule).map(|pace| rule.come_in(pace.part, pace.from, u64::MAX));
        full_at.max(paced.max().unwrap_or(Nanos::ZERO)).max(settings.opens_for(now))
    }

    /// When a request of this priority is due behind all that are `ahead`.
    pub(crate) fn due<C: Timer>(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos
    where
        R: Rule<C>,
    {
        let opens = self.settings.opens_for(now);
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
        let due = match &settings.pause {
            Some(pause) => rule.ready_after_pause(pause.until(settings.opens), now, ahead, ask, kept),
            None if kept > 0 => rule.ready_at(now, ahead, ask).max(rule.ready_leaving(now, ahead, ask, kept)),
            None => rule.ready_at(now, ahead, ask),
        };
        let paced = |pace: Pace| pace.due(rule, rule.permits_in(ahead), ask, kept);
        let due = settings.paces_to_come(rule).map(paced).fold(due, Nanos::max);
        let Some(at) = self.emptied else { return due };
        let due = due.max(rule.ready_after_pause(Stop::end(at), now, ahead, ask, kept));
        let counting = (0..R::PARTS).filter(|part| !rule.stands_still(*part));
        counting.map(|part| paced(Pace::new(part, at))).fold(due, Nanos::max)
    }
}
