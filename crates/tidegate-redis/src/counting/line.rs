//! The requests of one process, and the calls that they share.
//!
//! A task on the store's thread makes the calls, one at a time, while permits are in use or
//! requests wait. Each call reports the permits that the process holds, and asks for the requests
//! at the head of the queue. A call thus serves all requests that came during the previous call,
//! and carries the permits that were given back meanwhile.
//!
//! A request that does not wait for permits is decided within the timeout of the store, counted
//! from its arrival. A request that queues for that long, or whose call does not end in time, is
//! decided as if the store were away. If its call grants it afterwards, the permits go to the next
//! request, or back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{AllRefusal, Left, Nanos, Refusal};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::counting::call::{Call, CallReport, Operation};
use crate::jitter::jittered;
use crate::known_pause::KnownPause;
use crate::lock::lock;
use crate::observe::Observers;
use crate::pending::PendingMessage;
use crate::script::Script;
use crate::store::{Away, Deadline, Store, WhileAway};

/// The maximum of requests of one call, and the maximum of them that wait: they take turns with
/// requests of other processes.
const MAX_REQUESTS: usize = 1024;
const MAX_ANNOUNCED: usize = 64;

/// A process that waits asks again after an eighth of the time that it has waited, within these
/// bounds. The lower bound is multiplied by the process's position in the queue.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(200);

/// The time for which a process keeps its position in the store's queue without asking: longer than
/// its call and its interval take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The decision about a request: its permits, and what they left.
pub(super) type Answer = Result<(Held, Left), AllRefusal>;

/// The position of a request: by priority, then by arrival.
pub(super) type Position = (Reverse<i8>, u64);

/// What the handles of one limit share in this process.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) script: Arc<Script>,
    pub(super) observers: Arc<Observers>,
    pub(super) key: String,
    pub(super) process: [u8; 8],
    pub(super) span: Duration,
    pub(super) limit: AtomicU32,
    pub(super) line: Mutex<Line>,
    pub(super) known_pause: Arc<KnownPause>,
    /// Notified when there is a reason for a call.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    /// The permits in use.
    held: u64,
    waiters: BTreeMap<Position, Waiter>,
    arrivals: u64,
    /// Requests that arrived before this number have waited for permits in use: the store has
    /// reported that their permits, or those of a request before them, are not free.
    reported_before: u64,
    /// The number of requests that wait in the store's queue. The requests behind them are asked
    /// for when these are served, so that processes take turns.
    announced: usize,
    /// The deadlines of the requests in the queue that do not stay in it, by arrival. Such requests
    /// are added only while `announced` is 0. Decided requests may still have an entry.
    deadlines: VecDeque<(Instant, Position)>,
    is_served: bool,
    is_closed: bool,
    calls: u64,
    /// The time until which the store may count permits or a position of this process.
    known_until: Option<Instant>,
    /// Set while the next call has something to report to the store.
    message: Option<PendingMessage>,
}

#[derive(Debug)]
struct Waiter {
    permits: u32,
    /// Whether the request waits for permits, or only for the decision.
    waits_for_permits: bool,
    answer: oneshot::Sender<Answer>,
}

/// The decisions that a critical section leaves to be sent without its lock.
type Answers = Vec<(oneshot::Sender<Answer>, Answer)>;

/// Sends decisions. If a request is gone, its permits are dropped, which gives them back. A panic
/// in a user's waker must not keep other requests from their decisions.
fn send(answers: Answers) {
    for (sender, answer) in answers {
        _ = catch_unwind(AssertUnwindSafe(|| _ = sender.send(answer)));
    }
}

/// Permits in use. Dropping them gives them back.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    permits: u32,
    /// Granted without the store.
    pub(super) is_degraded: bool,
}

/// A call, and its requests with their permits, which are negative for a request that does not
/// stay.
struct PendingCall {
    cmd: Cmd,
    requests: Vec<(Position, i64)>,
    held: u64,
    /// How many messages that begin or end a pause had their outcome when the call left.
    pauses: u64,
    /// Ends when the call has its outcome.
    message: PendingMessage,
}

impl Shared {
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    pub(super) fn limit(&self) -> u32 {
        // Relaxed: an independent number.
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.line().waiters.len()
    }

    pub(super) fn check(&self, permits: u32) -> Result<(), Refusal> {
        let limit = self.limit();
        match permits {
            _ if self.line().is_closed => Err(Refusal::Closed),
            0 => Err(Refusal::ZeroPermits),
            // A single permit may become available when the limit is raised.
            n if n > limit.max(1) => Err(Refusal::ExceedsLimit { requested: n, limit }),
            _ => Ok(()),
        }
    }

    /// Adds a request to the queue. It leaves the queue when it is decided, or by `leave`.
    pub(super) fn join(
        self: &Arc<Shared>,
        permits: u32,
        waits_for_permits: bool,
        priority: i8,
    ) -> Result<(Position, oneshot::Receiver<Answer>), Refusal> {
        let mut line = self.line();
        if line.is_closed {
            return Err(Refusal::Closed);
        }
        // Other requests already wait for permits in use.
        if line.announced > 0 && !waits_for_permits {
            return Err(Refusal::InUse { limit: self.limit() });
        }
        let position = (Reverse(priority), line.arrivals);
        line.arrivals += 1;
        let (answer, receiver) = oneshot::channel();
        line.waiters.insert(position, Waiter { permits, waits_for_permits, answer });
        if line.announced > 0 {
            line.reported_before = line.arrivals;
        }
        if !waits_for_permits {
            line.deadlines.push_back((Instant::now() + self.store.timeout(), position));
        }
        let is_served = std::mem::replace(&mut line.is_served, true);
        let is_news = line.announced == 0;
        drop(line);
        if !is_served {
            self.store.spawn(Box::pin(Serving(Some(self.clone())).serve()));
        } else if is_news {
            self.changed.notify_one();
        }
        Ok((position, receiver))
    }

    /// Lets a request wait only for the decision. Returns whether the decision is still to come: it
    /// is not if the permits are known to be in use, from the store or because requests wait for
    /// them.
    pub(super) fn stop_waiting(&self, position: Position) -> bool {
        let mut line = self.line();
        if line.announced > 0 || position.1 < line.reported_before {
            return false;
        }
        let Some(waiter) = line.waiters.get_mut(&position) else { return false };
        if !std::mem::replace(&mut waiter.waits_for_permits, false) {
            return true;
        }
        line.deadlines.push_back((Instant::now() + self.store.timeout(), position));
        true
    }

    /// Removes a request that is not decided yet.
    pub(super) fn leave(&self, position: Position) {
        let mut line = self.line();
        let left = line.waiters.remove(&position);
        // Its position in the store goes to the next request of this process, if there is one.
        let is_news = line.waiters.len() < line.announced;
        line.announced = line.announced.min(line.waiters.len());
        drop(line);
        if is_news {
            self.changed.notify_one();
        }
        drop(left);
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
        let mut line = self.line();
        let (mut answers, mut too_large) = (Vec::new(), Vec::new());
        for (position, waiter) in &line.waiters {
            if waiter.permits > limit.max(1) {
                too_large.push((*position, Refusal::ExceedsLimit { requested: waiter.permits, limit }));
            }
        }
        for (position, refusal) in too_large {
            line.refuse(position, refusal, &mut answers);
        }
        drop(line);
        send(answers);
        self.changed.notify_one();
    }

    /// Refuses all requests from now on. Returns whether the queue was open.
    pub(super) fn close(&self) -> bool {
        let mut line = self.line();
        let was_closed = std::mem::replace(&mut line.is_closed, true);
        let waiters = std::mem::take(&mut line.waiters);
        drop(line);
        send(waiters.into_values().map(|waiter| (waiter.answer, Err(Refusal::Closed.into()))).collect());
        self.changed.notify_one();
        !was_closed
    }

    /// A call of the script.
    pub(super) fn call<'a>(&'a self, operation: Operation, line: &Line, sizes: &'a [i64]) -> Call<'a> {
        Call {
            operation,
            key: &self.key,
            process: self.process,
            now: None,
            limit: self.limit(),
            span: self.span,
            number: line.calls,
            held: line.held,
            patience: PATIENCE,
            sizes,
        }
    }

    pub(super) async fn ask(&self, operation: Operation) -> Result<CallReport, Away> {
        let (sender, receiver) = oneshot::channel();
        let deadline = Deadline::of(self.store.timeout());
        self.send(operation, deadline, move |outcome| _ = sender.send(outcome));
        self.read(receiver.await.unwrap_or(Err(Away::For(Duration::MAX))))
    }

    /// Like `ask`, without waiting for the reply.
    pub(super) fn send_detached(&self, operation: Operation) {
        let store = self.store.clone();
        self.send(operation, Deadline::NONE, move |outcome| {
            if outcome.is_err() {
                store.note_lost(0);
            }
        });
    }

    fn send(
        &self,
        operation: Operation,
        deadline: Deadline,
        answer: impl FnOnce(Result<Value, Away>) + Send + 'static,
    ) {
        let cmd = self.call(operation, &Line::default(), &[]).command(&self.script);
        let pause = match operation {
            Operation::Pause(span) => Some(self.known_pause.begin(span)),
            Operation::Resume => Some(self.known_pause.end()),
            Operation::Call | Operation::Status => None,
        };
        drop(self.store.send(cmd, self.script.clone(), deadline, move |outcome| {
            drop(pause);
            answer(outcome);
        }));
    }

    fn read(&self, outcome: Result<Value, Away>) -> Result<CallReport, Away> {
        CallReport::read(&outcome?).ok_or_else(|| self.store.note_invalid_reply())
    }

    /// Returns the next call; `None` if the store already knows that nothing is held or wanted.
    fn next(&self) -> Option<PendingCall> {
        let now = Instant::now();
        let mut line = self.line();
        if line.held == 0 && line.waiters.is_empty() && line.known_until.is_none_or(|until| until <= now) {
            line.is_served = false;
            let message = line.message.take();
            drop(line);
            drop(message);
            return None;
        }
        line.calls += 1;
        // The store may carry out the call without a reply.
        line.known_until = Some(now + self.span);
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
        Some(PendingCall { cmd, requests, held: line.held, pauses, message })
    }

    /// Decides requests by the store's reply. Returns how long to rest if nothing changes. `since`
    /// is the time from which requests wait.
    fn apply(
        self: &Arc<Shared>,
        asked: PendingCall,
        report: Result<CallReport, Away>,
        since: &mut Option<Instant>,
    ) -> Duration {
        let mut answers = Answers::new();
        let mut line = self.line();
        let rest = match &report {
            Ok(report) => self.apply_report(&mut line, &asked, report, since, &mut answers),
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
            Err(_) => line.message.replace(asked.message),
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
        since: &mut Option<Instant>,
        answers: &mut Answers,
    ) -> Duration {
        self.known_pause.reported(asked.pauses, report.paused_for);
        let limit = self.limit();
        let left = left(limit, report.in_use);
        line.announced = 0;
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
                Some(_) if granted => self.grant(line, *position, left, false, answers),
                Some(waiter) if waiter.waits_for_permits => line.announced += 1,
                Some(_) => {
                    let refusal = match report.paused_for {
                        Duration::ZERO => Refusal::InUse { limit },
                        rest => Refusal::Paused { retry_after: Nanos::from_duration(rest) },
                    };
                    line.refuse(*position, refusal, answers);
                }
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
            self.grant(line, position, left, false, answers);
        }
        if line.announced > 0 {
            line.reported_before = line.arrivals;
            // Requests that do not wait came during the call, and do not overtake.
            for position in line.take_not_waiting() {
                line.refuse(position, Refusal::InUse { limit }, answers);
            }
        }
        if line.announced == 0 {
            *since = None;
        }
        self.asks_again(line, known, wants, report.before, since)
    }

    /// Returns the time after which the store is asked again. The store knows that this process
    /// holds `known` permits, and that `wants` of its requests wait behind others.
    fn asks_again(
        &self,
        line: &mut Line,
        known: u64,
        wants: usize,
        before: u64,
        since: &mut Option<Instant>,
    ) -> Duration {
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
            return jittered(self.span / 3);
        }
        let waited = since.get_or_insert_with(Instant::now).elapsed();
        let position = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        let interval = (waited / 8).max(SOONEST.saturating_mul(position)).min(LATEST);
        jittered(interval.min(self.span / 3))
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
    pub(super) fn expire_one(self: &Arc<Shared>, position: Position) {
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
        line.announced = 0;
        let positions = match self.may_come_back(away) {
            // The others stay in the queue.
            true => line.take_not_waiting(),
            false => line.waiters.keys().copied().collect(),
        };
        self.decide(line, positions, away, answers);
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
    /// store granted before.
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
        let may_wait = self.may_come_back(away);
        let (paused, mut is_held_up) = (self.known_pause.refusal(), false);
        for position in positions {
            let Some(Waiter { permits, waits_for_permits, .. }) = line.waiters.get(&position) else {
                continue;
            };
            let (permits, waits_for_permits) = (u64::from(*permits), *waits_for_permits);
            match (most, &paused) {
                (None, _) if waits_for_permits && may_wait => {}
                (None, _) => line.refuse(position, Refusal::Unavailable { retry_after }, answers),
                // It may fit the limit, though not the share.
                (Some(most), _) if permits > u64::from(most.max(1)) => {
                    line.refuse(position, Refusal::Unavailable { retry_after }, answers);
                }
                (Some(_), Some(_)) if waits_for_permits => {}
                (Some(_), Some(refusal)) => line.refuse(position, refusal.clone(), answers),
                (Some(most), None)
                    if most == u32::MAX || (!is_held_up && line.held + permits <= most.into()) =>
                {
                    self.grant(line, position, left(most, line.held + permits), true, answers);
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
struct Serving(Option<Arc<Shared>>);

impl Serving {
    /// Makes calls while permits are in use or requests wait.
    async fn serve(mut self) {
        let Some(shared) = self.0.clone() else { return };
        let mut since = None;
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
            let rest = shared.apply(asked, report, &mut since);
            let _ = tokio::time::timeout(rest, shared.changed.notified()).await;
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
        shared.decide_alone(&mut line, Away::For(Duration::MAX), &mut answers);
        line.is_served = false;
        line.deadlines.clear();
        let waiters = std::mem::take(&mut line.waiters);
        let message = line.message.take();
        drop(line);
        shared.store.note_lost(0);
        send(answers);
        for (_, waiter) in waiters {
            _ = catch_unwind(AssertUnwindSafe(|| drop(waiter)));
        }
        drop(message);
    }
}

impl Line {
    /// The time by which the next request must be decided.
    fn first_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, position)) = self.deadlines.front() {
            if self.waiters.contains_key(position) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Takes the requests that do not stay in the queue. The caller then decides them.
    fn take_not_waiting(&mut self) -> Vec<Position> {
        self.deadlines.drain(..).map(|(_, position)| position).collect()
    }

    fn refuse(&mut self, position: Position, refusal: impl Into<AllRefusal>, answers: &mut Answers) {
        if let Some(Waiter { answer, .. }) = self.waiters.remove(&position) {
            answers.push((answer, Err(refusal.into())));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut line = self.shared.line();
        line.held = line.held.saturating_sub(self.permits.into());
        let store = &self.shared.store;
        match line.is_served {
            true => _ = line.message.get_or_insert_with(|| store.begin_message()),
            // The store has ended.
            false => store.note_lost(0),
        }
        drop(line);
        self.shared.changed.notify_one();
    }
}

pub(super) fn left(limit: u32, in_use: u64) -> Left {
    Left::new(limit.into(), u64::from(limit).saturating_sub(in_use))
}
