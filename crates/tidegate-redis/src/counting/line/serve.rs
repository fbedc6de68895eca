//! The calls that the requests of one process share, and what they decide.
//!
//! A task on the store's thread makes the calls, one at a time, while permits are in use or
//! requests wait. Each call reports the permits that the process holds, and asks for the requests
//! at the head of the queue. A call thus serves all requests that came during the previous call,
//! and carries the permits that were given back meanwhile.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::select;
use redis::Cmd;
use tidegate::{AllRefusal, Left, Nanos, Refusal};
use tokio::time::Instant;

use crate::counting::call::{CallReport, Operation};
use crate::counting::line::{Answers, Held, Line, Position, Shared, Waiter, left, not_free, send};
use crate::jitter::jittered;
use crate::pending::PendingMessage;
use crate::store::{Away, Deadline, WhileAway};

/// The maximum of requests of one call, and the maximum of them that wait: they take turns with
/// requests of other processes.
const MAX_REQUESTS: usize = 1024;
const MAX_ANNOUNCED: usize = 64;

/// A process that waits asks again after an eighth of the time that it has waited, within these
/// bounds. The lower bound is multiplied by the process's position in the queue.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(200);

/// A call, and its requests with their permits, which are negative for a request that does not
/// stay.
struct PendingCall {
    cmd: Cmd,
    requests: Vec<(Position, i64)>,
    held: u64,
    /// Whether permits were dropped, or were spare, of which the store has not heard.
    gives_back: bool,
    /// How many messages that begin or end a pause had their outcome when the call left.
    pauses: u64,
    /// Ends when the call has its outcome.
    message: PendingMessage,
}

impl Shared {
    /// Returns the next call; `None` if the store already knows that nothing is held or wanted.
    fn next(&self) -> Option<PendingCall> {
        let now = Instant::now();
        let mut line = self.line();
        if line.held == 0 && line.waiters.is_empty() && line.known_until.is_none_or(|until| until <= now) {
            (line.is_served, line.waits_since) = (false, None);
            let (message, gives_back) = (line.message.take(), std::mem::take(&mut line.gives_back));
            drop(line);
            // Permits that were dropped have expired by now.
            if gives_back && let Some(message) = message {
                message.give_up();
            }
            return None;
        }
        line.calls += 1;
        // The store may carry out the call without a reply. A call that reports and asks for nothing
        // leaves nothing in the store.
        if line.held > 0 || !line.waiters.is_empty() {
            line.known_until = Some(now + self.span);
        }
        let most = if line.announced == 0 { MAX_REQUESTS } else { line.announced };
        let mut waits = 0;
        let may_come = |(_, waiter): &(&Position, &Waiter)| {
            waits += usize::from(waiter.waits_for_permits);
            waits <= MAX_ANNOUNCED
        };
        let size =
            |waiter: &Waiter| i64::from(waiter.permits) * if waiter.waits_for_permits { 1 } else { -1 };
        let asked = line.waiters.iter().take_while(may_come).take(most);
        let requests: Vec<(Position, i64)> =
            asked.map(|(position, waiter)| (*position, size(waiter))).collect();
        if !requests.is_empty() {
            self.store.note_permit_request();
        }
        let sizes: Vec<i64> = requests.iter().map(|(_, size)| *size).collect();
        let cmd = self.call(Operation::Call, &line, &sizes).command(&self.script);
        let message = line.message.take().unwrap_or_else(|| self.store.begin_message());
        let pauses = self.known_pause.messages();
        let gives_back = std::mem::take(&mut line.gives_back);
        Some(PendingCall { cmd, requests, held: line.held, gives_back, pauses, message })
    }

    /// Decides requests by the store's reply. Returns how long to rest if nothing changes.
    fn apply(self: &Arc<Shared>, asked: PendingCall, report: Result<CallReport, Away>) -> Duration {
        let mut answers = Answers::new();
        if let Err(away) = report {
            asked.message.failed(self.store.error_of(away));
        }
        let mut line = self.line();
        let rest = match &report {
            Ok(report) => self.apply_report(&mut line, &asked, report, &mut answers),
            Err(away) => self.decide_alone(&mut line, *away, &mut answers),
        };
        let over = match report {
            Ok(_) => {
                if rest.is_zero() {
                    line.message.get_or_insert_with(|| self.store.begin_message());
                }
                Some(asked.message)
            }
            // The store did not reply. The next call reports the held permits again, and a flush
            // waits for that call.
            Err(_) => {
                line.gives_back |= asked.gives_back;
                line.message.replace(asked.message)
            }
        };
        drop(line);
        send(answers);
        // Permits of requests that are gone have been marked for the next report by now.
        drop(over);
        rest
    }

    fn apply_report(
        self: &Arc<Shared>,
        line: &mut Line,
        asked: &PendingCall,
        report: &CallReport,
        answers: &mut Answers,
    ) -> Duration {
        self.known_pause.reported(asked.pauses, report.paused_for);
        let limit = self.limit();
        let left = left(limit, report.in_use);
        let refusal = not_free(limit, report.paused_for);
        line.free = if report.before > 0 { 0 } else { left.available };
        line.announced = 0;
        let now = Instant::now();
        // How much longer the pause lasts than a maximum wait.
        let outlasts = |ends: Option<Instant>| {
            let rest = report.paused_for.saturating_sub(ends?.saturating_duration_since(now));
            (!rest.is_zero()).then(|| Nanos::from_duration(rest))
        };
        // Permits of requests that left meanwhile are spare.
        let mut spare = 0;
        // The store knows that this process holds `known` permits, and that `wants` requests wait.
        let (mut known, mut wants) = (asked.held, 0);
        let granted = report.granted.iter().copied().chain(std::iter::repeat(false));
        for ((position, size), granted) in asked.requests.iter().zip(granted) {
            match granted {
                true => known += size.unsigned_abs(),
                false => wants += usize::from(*size > 0),
            }
            match line.waiters.get_mut(position) {
                Some(_) if granted => self.grant_of_store(line, *position, left, answers),
                Some(waiter) if waiter.waits_for_permits => match outlasts(waiter.ends) {
                    Some(retry_after) => line.refuse(*position, Refusal::Paused { retry_after }, answers),
                    None => line.announced += 1,
                },
                Some(_) => line.refuse(*position, refusal, answers),
                None if granted => spare += size.unsigned_abs(),
                None => {}
            }
        }
        // The spare permits go to the next requests.
        while let Some((position, waiter)) = line.waiters.first_key_value()
            && u64::from(waiter.permits) <= spare
        {
            let position = *position;
            spare -= u64::from(waiter.permits);
            line.announced = line.announced.saturating_sub(1);
            self.grant_of_store(line, position, left, answers);
        }
        line.gives_back |= spare > 0;
        if line.announced > 0 {
            line.reported_before = line.arrivals;
            // Requests that do not wait came during the call, and do not overtake.
            for position in line.take_not_waiting() {
                line.refuse(position, refusal, answers);
            }
        }
        if line.announced == 0 {
            line.waits_since = None;
        }
        line.is_paused = line.announced > 0 && !report.paused_for.is_zero();
        self.asks_again(line, known, wants, report.before)
    }

    /// Returns the time after which the store is asked again. The store knows that this process
    /// holds `known` permits, and that `wants` of its requests wait behind others.
    fn asks_again(&self, line: &mut Line, known: u64, wants: usize, before: u64) -> Duration {
        let is_known = known > 0 || wants > 0;
        line.known_until = is_known.then(|| Instant::now() + self.span);
        // The process holds less, or wants less or more, than it reported.
        if line.held != known || line.announced != wants || (wants == 0 && !line.waiters.is_empty()) {
            return Duration::ZERO;
        }
        if !is_known {
            // The task soon ends, and with it the queue that it keeps: there may be a limit for
            // each of many tags.
            return LATEST;
        }
        if wants == 0 {
            // At most a third of the time to live.
            return jittered(self.span * 4 / 15);
        }
        let waited = line.waits_since.get_or_insert_with(Instant::now).elapsed();
        let position = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        let interval = (waited / 8).max(SOONEST.saturating_mul(position)).min(LATEST);
        jittered(interval.min(self.span / 3))
    }

    /// Rests until there is a reason for a call. The end of a pause is one.
    async fn rest(&self, rest: Duration) {
        let changed = pin!(self.changed.notified());
        if !self.line().is_paused {
            _ = tokio::time::timeout(rest, changed).await;
            return;
        }
        let paused = self.known_pause.rest();
        let ended = pin!(async {
            match paused {
                // The store has yet to end the pause.
                Duration::ZERO => pending().await,
                _ => self.known_pause.until_changed(true).await,
            }
        });
        _ = tokio::time::timeout(rest.min(paused.max(SOONEST)), select(changed, ended)).await;
        self.note_pause_end(&mut self.line());
    }

    /// Decides the requests whose reply is late.
    fn expire(self: &Arc<Shared>) {
        let now = Instant::now();
        let mut line = self.line();
        let passed = line.deadlines.partition_point(|(deadline, _)| *deadline <= now);
        let late = line.deadlines.drain(..passed).map(|(_, position)| position).collect();
        self.decide_late(line, late);
    }

    /// Decides a request that waits only for the decision.
    pub(in crate::counting) fn expire_one(self: &Arc<Shared>, position: Position) {
        self.decide_late(self.line(), vec![position]);
    }

    fn decide_late(self: &Arc<Shared>, mut line: MutexGuard<'_, Line>, positions: Vec<Position>) {
        let mut answers = Answers::new();
        self.decide(&mut line, positions, Away::For(Duration::ZERO), &mut answers);
        drop(line);
        send(answers);
    }

    /// Decides all requests without the store.
    fn decide_alone(self: &Arc<Shared>, line: &mut Line, away: Away, answers: &mut Answers) -> Duration {
        // What the store reported of the requests that stay may be over when it is back.
        (line.announced, line.reported_before) = (0, 0);
        let positions = match self.may_come_back(away) {
            // The others stay in the queue.
            true => line.take_not_waiting(),
            false => line.waiters.keys().copied().collect(),
        };
        self.decide(line, positions, away, answers);
        line.is_paused = !line.waiters.is_empty() && !self.known_pause.rest().is_zero();
        jittered(match away {
            Away::For(Duration::MAX) | Away::Misconfigured => LATEST,
            Away::For(rest) => rest.clamp(SOONEST, LATEST),
            Away::Late => SOONEST,
        })
    }

    /// Returns whether requests that stay in the queue wait for the store. A store that has ended
    /// does not come back.
    fn may_come_back(&self, away: Away) -> bool {
        self.store.while_away() == WhileAway::Wait && away.retry_after() < Nanos::MAX
    }

    /// Decides without the store, by the permits that this process holds, including those that the
    /// store granted before, and those of other limits of this key. When such a limit gives permits
    /// back, the requests that wait here are decided after the next call, within a quarter of a
    /// second.
    fn decide(
        self: &Arc<Shared>,
        line: &mut Line,
        positions: Vec<Position>,
        away: Away,
        answers: &mut Answers,
    ) {
        let limit = self.limit();
        let retry_after = away.retry_after();
        let most = match (away, self.store.while_away()) {
            // A wrong configuration is never hidden.
            (Away::Misconfigured, _) | (_, WhileAway::Wait | WhileAway::Closed) => None,
            (_, WhileAway::Open) => Some(u32::MAX),
            (_, WhileAway::Share | WhileAway::ShareOf(_)) => {
                self.store.processes().map(|processes| (limit / processes).max(limit.min(1)))
            }
        };
        let bound = |most: u32| if most == u32::MAX { u64::MAX } else { most.into() };
        let may_wait = self.may_come_back(away);
        let (paused, mut is_held_up) = (self.known_pause.refusal(), false);
        for position in positions {
            let Some(Waiter { permits, waits_for_permits, .. }) = line.waiters.get(&position) else {
                continue;
            };
            let (permits, waits_for_permits) = (u64::from(*permits), *waits_for_permits);
            match (most, &paused) {
                (None, _) if waits_for_permits && may_wait => {}
                (None, Some(refusal)) if away != Away::Misconfigured => {
                    line.refuse(position, refusal.clone(), answers);
                }
                (None, _) => line.refuse(position, Refusal::Unavailable { retry_after }, answers),
                // It may fit the limit, though not the share.
                (Some(most), _) if permits > u64::from(most.max(1)) => {
                    line.refuse(position, Refusal::Unavailable { retry_after }, answers);
                }
                (Some(_), Some(_)) if waits_for_permits => {}
                (Some(_), Some(refusal)) => line.refuse(position, refusal.clone(), answers),
                (Some(most), None) if !is_held_up && self.in_process.try_add(permits, bound(most)) => {
                    self.grant(line, position, left(most, self.in_process.permits()), true, answers);
                }
                (Some(_), None) if waits_for_permits => is_held_up = true,
                (Some(most), None) => {
                    let refusal = AllRefusal::from(Refusal::InUse { limit: most });
                    line.refuse(position, refusal.as_degraded(), answers);
                }
            }
        }
        for _ in &*answers {
            self.store.count_degraded();
        }
    }

    /// Grants a request for which the store granted permits.
    fn grant_of_store(
        self: &Arc<Shared>,
        line: &mut Line,
        position: Position,
        left: Left,
        answers: &mut Answers,
    ) {
        if let Some(Waiter { permits, .. }) = line.waiters.get(&position) {
            self.in_process.add(u64::from(*permits));
            self.grant(line, position, left, false, answers);
        }
    }

    /// Grants a request. This process counts its permits already.
    fn grant(
        self: &Arc<Shared>,
        line: &mut Line,
        position: Position,
        left: Left,
        is_degraded: bool,
        answers: &mut Answers,
    ) {
        if let Some(Waiter { permits, answer, .. }) = line.waiters.remove(&position) {
            line.held += u64::from(permits);
            let held = Held { shared: self.clone(), permits, is_degraded };
            answers.push((answer, Ok((held, left))));
        }
    }
}

/// The task that serves the queue. If it does not end by itself, its store has ended.
pub(super) struct Serving(Option<Arc<Shared>>);

impl Serving {
    pub(super) fn new(shared: Arc<Shared>) -> Serving {
        Serving(Some(shared))
    }

    /// Makes calls while permits are in use or requests wait.
    pub(super) async fn serve(mut self) {
        let Some(shared) = self.0.clone() else { return };
        while let Some(asked) = shared.next() {
            // Requests that do not wait have their own deadlines.
            let mut answer =
                pin!(shared.store.ask(asked.cmd.clone(), shared.script.clone(), Deadline::MUST_SEND));
            let report = loop {
                // Requests that come meanwhile have a later deadline.
                let first = shared.line().first_deadline();
                let deadline = first.unwrap_or_else(|| Instant::now() + shared.store.timeout());
                match tokio::time::timeout_at(deadline, &mut answer).await {
                    Ok(outcome) => break shared.read(outcome),
                    Err(_) => shared.expire(),
                }
            };
            let rest = shared.apply(asked, report);
            shared.rest(rest).await;
        }
        self.0 = None;
    }
}

impl Drop for Serving {
    /// Requests that nothing will serve get no decision: each finds that its sender is gone.
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let mut answers = Answers::new();
        let mut line = shared.line();
        shared.decide_alone(&mut line, Away::ENDED, &mut answers);
        (line.is_served, line.waits_since) = (false, None);
        line.deadlines.clear();
        let waiters = std::mem::take(&mut line.waiters);
        let message = line.message.take();
        drop(line);
        shared.store.note_lost(0, Away::ENDED);
        send(answers);
        for (_, waiter) in waiters {
            _ = catch_unwind(AssertUnwindSafe(|| drop(waiter)));
        }
        drop(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    /// Bug: a report was up to five twelfths of the time to live old.
    #[tokio::test(start_paused = true)]
    async fn a_report_is_at_most_a_third_of_the_time_to_live_old() {
        let store = Store::open("redis+unix:///nowhere").expect("a store");
        let span = Duration::from_secs(12);
        let jobs = store.counting("jobs", 1).time_to_live(span).build().expect("a limit");
        for _ in 0..1000 {
            let mut line = Line { held: 1, ..Line::default() };
            let rest = jobs.shared.asks_again(&mut line, 1, 0, 0);
            assert!(rest <= span / 3, "{rest:?}");
        }
    }
}
