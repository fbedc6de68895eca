//! When a request is due, by the policy, the kept share and a pause.

use crate::clock::Timer;
use crate::line::rule::Rule;
use crate::line::settings::Settings;
use crate::time::Nanos;

/// The terms of a limiter: its policy with the state, and its settings.
pub(crate) struct Terms<'a, R> {
    pub(crate) rule: &'a R,
    pub(crate) settings: &'a Settings,
}

impl<R> Terms<'_, R> {
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

    /// When a request is due, if no pause is to be regarded.
    pub(crate) fn ready_at<C: Timer>(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos
    where
        R: Rule<C>,
    {
        let due = self.rule.ready_at(now, ahead, ask);
        match self.settings.kept_from(priority) {
            0 => due,
            kept => due.max(self.rule.ready_leaving(now, ahead, ask, kept)),
        }
    }
}
