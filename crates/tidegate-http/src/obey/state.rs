//! The state known of one server, as plain data: no clock, no lock, no limiter.
//!
//! | | holds | changed by |
//! |---|---|---|
//! | `open` | the costs of calls that began and have no response | begin, response, drop |
//! | `unreported` | the sum of the costs of calls that ended without a report of limits; it only grows | response, drop |
//! | `windows` | how many units the server allows, for each limit, and until when | begin, response |
//! | `pauses` | how often the server asked for a stop | a response that refuses |
//! | `refusals` | refusals in a row | a response that refuses or succeeds |
//! | `paused_until` | when the last pause of the limiter ends | a pause |
//!
//! The refusals of calls in flight together count as one. Only a call that began after the last
//! pause was reported counts as a further refusal, and only the success of such a call ends a row
//! of refusals.
//!
//! *Uncounted* are the calls that the server may not have counted when it wrote a response: the
//! calls in flight, and the calls that ended without a report since this response's call began.
//! The call itself is counted in each of its responses. Other calls that ended since then brought a
//! response with its own count, and a count only lowers.

use std::time::{Duration, SystemTime};

use tidegate::Nanos;

use super::costs::{Count, Load};
use super::window::{Allowed, Windows, whole};
use crate::read::{Advice, ResponseLimits};
use crate::{Unit, When};

#[derive(Debug)]
pub(super) struct State {
    responses: u64,
    open: Load,
    unreported: Load,
    windows: Windows,
    pauses: u64,
    refusals: u32,
    paused_until: Nanos,
    /// When the last response was read, and when the last one that was counted as a refusal.
    responded: Nanos,
    refused: Nanos,
}

/// A call, which is in flight until its first response.
#[derive(Debug)]
pub(super) struct Ticket {
    is_open: bool,
    costs: Load,
    began: Nanos,
    responses: u64,
    pauses: u64,
    /// The part of the state's `unreported` that the server has counted when it writes a response
    /// of this call: the calls that ended before this one began, and this call itself.
    unreported: Load,
    /// The time from the beginning of the call to its first response, if it has one.
    trip: Option<Nanos>,
    /// Whether the last response with a status was a success. `None` if there is none.
    is_success: Option<bool>,
}

/// How responses are obeyed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) max_pause: Duration,
    pub(super) back_off: Duration,
}

/// What the limiter must do after a response.
#[derive(Debug, Default)]
pub(super) struct Actions {
    /// Send nothing for this long.
    pub(super) pause: Option<Duration>,
    /// How long the server asks the client to pause, if it reports that.
    pub(super) asked: Option<Duration>,
    /// Keep at most this many permits of a member.
    pub(super) keep: Vec<(Count, u64)>,
    /// The response refuses a call that began after the last pause.
    pub(super) is_new_refusal: bool,
    /// The response grants such a call.
    pub(super) is_success: bool,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            responses: 0,
            open: Load::default(),
            unreported: Load::default(),
            windows: Windows::default(),
            pauses: 0,
            refusals: 0,
            paused_until: Nanos::ZERO,
            responded: Nanos::ZERO,
            refused: Nanos::ZERO,
        }
    }

    /// Begins a call.
    ///
    /// # Errors
    ///
    /// Returns the time until which the call has to wait, if the server allows no more calls.
    pub(super) fn begin(&mut self, now: Nanos, costs: Load) -> Result<Ticket, Nanos> {
        self.windows.take(now, &costs, &self.open)?;
        Ok(self.open(now, costs))
    }

    /// Begins a call even if the server allows no more calls.
    pub(super) fn force_begin(&mut self, now: Nanos, costs: Load) -> Ticket {
        if self.windows.take(now, &costs, &self.open).is_err() {
            self.windows.force_take(&costs);
        }
        self.open(now, costs)
    }

    /// Begins a call that began at another limiter `age` ago with the ticket `from`, even if the
    /// server allows no more calls. The response to the call may be older than the last one that
    /// this state learned from.
    pub(super) fn move_in(&mut self, now: Nanos, from: &Ticket, age: Nanos) -> Ticket {
        let ticket = self.force_begin(now, from.costs.clone());
        // The time 0 is a year before the clock's beginning, so no call is older.
        let began = Nanos::new(now.as_u64().saturating_sub(age.as_u64()));
        let is_before = |at: Nanos, count: u64| count > 0 && began <= at;
        let responses = if is_before(self.responded, self.responses) { 0 } else { ticket.responses };
        let pauses = ticket.pauses - u64::from(is_before(self.refused, self.pauses));
        Ticket { began, responses, pauses, trip: from.trip, is_success: from.is_success, ..ticket }
    }

    /// Returns whether a whole window of each limit has room for these costs.
    pub(super) fn fits(&self, costs: &Load) -> bool {
        self.windows.fit(costs)
    }

    fn open(&mut self, now: Nanos, costs: Load) -> Ticket {
        self.open.add(&costs);
        Ticket {
            is_open: true,
            costs,
            began: now,
            responses: self.responses,
            pauses: self.pauses,
            unreported: self.unreported.clone(),
            trip: None,
            is_success: None,
        }
    }

    /// Returns how often the server asked for a stop.
    pub(super) fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Forgets what the server reported. Calls in flight stay in flight.
    pub(super) fn forget(&mut self) {
        self.windows = Windows::default();
        self.refusals = 0;
        self.paused_until = Nanos::ZERO;
    }

    /// Notes that the limiter pauses until this time.
    pub(super) fn pause_until(&mut self, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Returns whether the limiter pauses.
    pub(super) fn is_paused(&self, now: Nanos) -> bool {
        self.paused_until > now
    }

    /// Returns the time until which the server allows nothing.
    pub(super) fn exhausted_until(&self, now: Nanos) -> Option<Nanos> {
        self.windows.exhausted_until(now)
    }

    /// Returns the number of calls in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.open.of(Count::CALLS)
    }

    /// Ends a call, if it is in flight, without a report of limits in the units that
    /// `is_unreported` selects.
    pub(super) fn end_call(&mut self, ticket: &mut Ticket, is_unreported: impl Fn(Count) -> bool) {
        if std::mem::take(&mut ticket.is_open) {
            self.open.subtract(&ticket.costs);
            let own = ticket.costs.only(is_unreported);
            self.unreported.add(&own);
            // A later response of the call has counted the call.
            ticket.unreported.add(&own);
        }
    }

    /// Learns from a response. The first response ends the call. `counts` has, for each limit, the
    /// unit in which calls are charged. `is_success` is `None` for limits that come without a
    /// status: then the status before counts, and without one, they are of a success.
    pub(super) fn learn(
        &mut self,
        now: Nanos,
        ticket: &mut Ticket,
        response: &ResponseLimits,
        counts: &[Option<Count>],
        is_success: Option<bool>,
        terms: Terms,
    ) -> Actions {
        let mut actions = Actions::default();
        ticket.is_success = is_success.or(ticket.is_success);
        let reported = response.limits.iter().zip(counts).filter(|(limit, _)| limit.remaining.is_some());
        let reported: Vec<_> = reported.filter_map(|(_, count)| *count).collect();
        ticket.trip.get_or_insert(now.saturating_since(ticket.began));
        self.end_call(ticket, |count| !response.trusted || !reported.contains(&count));
        if !response.trusted && !response.refused {
            return actions;
        }
        self.responses += 1;
        self.responded = now;
        for (limit, count) in response.limits.iter().zip(counts) {
            self.limit(now, ticket, response, (limit, *count), terms, &mut actions);
        }
        self.refusal(now, ticket, response, terms, &mut actions);
        actions
    }

    fn limit(
        &mut self,
        now: Nanos,
        ticket: &Ticket,
        response: &ResponseLimits,
        (limit, count): (&crate::read::ServerLimit, Option<Count>),
        terms: Terms,
        actions: &mut Actions,
    ) {
        let Some(remaining) = limit.remaining else { return };
        // A limit of calls in flight gets its units back when calls end: they are not used up.
        if limit.unit == Some(Unit::Concurrency) || (count.is_none() && !limit.is_exhausted()) {
            return;
        }
        // `ResponseLimits::advice` decides whether a limit of zero refused the call.
        if limit.is_zero() {
            return;
        }
        let ended = |count| self.unreported.of(count).saturating_sub(ticket.unreported.of(count));
        let uncounted = count.map_or(0, |count| self.open.of(count).saturating_add(ended(count)));
        let left = whole(remaining).saturating_sub(uncounted);
        let reset = from_now(limit.reset);
        let reset = match from_now(response.retry_after) {
            Some(retry) if response.refused && limit.is_exhausted() => Some(retry),
            _ => reset,
        };
        let left = match reset {
            // A reset that is not in the future is over: the limit has units again.
            Some(Duration::ZERO) => return,
            Some(asked) => {
                let asked_within = asked.min(terms.max_pause);
                let until = now.saturating_add(asked_within.into());
                let not_before = ticket.began.saturating_add(asked_within.into());
                let (response, seen) = (self.responses, ticket.responses);
                // A presumed window lasts for two trips, so it lasts at most for `max_pause`.
                let trip = ticket.trip.unwrap_or_default().min((terms.max_pause / 2).into());
                let allowed = Allowed { limit, count, left, not_before, until, response, seen, trip };
                let Some(left) = self.windows.learn(now, allowed) else { return };
                if left == 0 {
                    actions.pause(asked_within, asked);
                }
                left
            }
            None => left,
        };
        if let Some(count) = count.filter(|count| count.member().is_some()) {
            actions.keep.push((count, left));
        }
    }

    fn refusal(
        &mut self,
        now: Nanos,
        ticket: &Ticket,
        response: &ResponseLimits,
        terms: Terms,
        actions: &mut Actions,
    ) {
        let is_new = ticket.pauses == self.pauses;
        if !response.refused {
            actions.is_success = ticket.is_success.unwrap_or(true) && is_new;
            if actions.is_success {
                self.refusals = 0;
            }
            return;
        }
        if is_new {
            self.refused = now;
            self.pauses += 1;
            self.refusals = self.refusals.saturating_add(1);
            actions.is_new_refusal = true;
        }
        // `now` counts only for absolute timestamps, and none are left here.
        match response.advice(SystemTime::UNIX_EPOCH, terms.max_pause) {
            Advice::Pause { wait, asked } => actions.pause(wait, asked),
            Advice::BackOff { at_least } if is_new => {
                let doubled = 2_u32.saturating_pow(self.refusals - 1);
                let wait = at_least.max(terms.back_off).saturating_mul(doubled).min(terms.max_pause);
                actions.pause = actions.pause.max(Some(wait));
            }
            _ => {}
        }
    }
}

impl Ticket {
    /// Returns whether the call is in flight.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn began(&self) -> Nanos {
        self.began
    }
}

impl Actions {
    fn pause(&mut self, wait: Duration, asked: Duration) {
        self.pause = self.pause.max(Some(wait));
        self.asked = self.asked.max(Some(asked));
    }
}

fn from_now(when: Option<When>) -> Option<Duration> {
    match when? {
        When::In(wait) => Some(wait),
        When::At(_) => None,
    }
}
