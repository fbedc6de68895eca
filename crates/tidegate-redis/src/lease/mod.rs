//! Leases: permits that the store has debited, and that this process may spend without asking the
//! store.
//!
//! A leased limit is a limiter of the core whose policy is its [`Stock`](stock::Stock), and a set
//! of limits is an `AllOf` of such limiters. So the queue, priorities, cancelled waits and threads
//! are those of the core, and a request that is served takes no lock and makes no round trip. A
//! task on the store's thread books permits before they are used up, and gives unused permits back.
//!
//! If the leases cannot serve a request, and no lease is booked for it, the store decides the
//! request as it does without leases.

mod account;
mod ledger;
mod patience;
mod policy;
mod size;
mod stock;
mod sync;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::all_of::AcquireAll;
use tidegate::{
    AcquireOwned, AllOf, AllPermits, AllRefusal, AllRequest, Clock, DefaultClock, Nanos, RateLimiter,
    Refusal, Request, Timer,
};
use tokio::sync::{Notify, oneshot};

use crate::guarded::guarded;
use crate::lease::account::TRUST;
use crate::lease::ledger::{Ledger, Order, OrderOutcome, Plan, Return};
use crate::lease::policy::Lease;
use crate::script::{Answer, GivenBack, Operation, Reply};
use crate::set::{Costs, Set, exactly};
use crate::store::{Away, WhileAway};

/// Where permits are booked: the queue to the store, in which a lease stands behind the requests
/// that came before it.
pub(crate) trait BookingQueue: Send + Sync {
    /// Books permits that are due within `longest`. If the reply is not taken, the permits are lost
    /// until new ones accrue.
    fn book(self: Arc<Self>, costs: Costs, longest: Duration, booked: ReplySender);

    /// Returns whether requests of this process wait there for their bookings.
    fn has_waiting(&self) -> bool;
}

/// Receives the result of a booking.
pub(crate) type ReplySender = oneshot::Sender<Result<Reply, Away>>;

/// The leases of one set of limits.
pub(crate) struct Leases {
    set: Arc<Set>,
    books: Weak<dyn BookingQueue>,
    pub(crate) ledger: Ledger,
    limiters: Vec<RateLimiter<Lease>>,
    /// The limiters together, if there are several. A single limiter is called directly, which
    /// takes a fifth of the time.
    all: Option<AllOf>,
    /// Notifies requests in the queue, in their order, that leases cannot serve them.
    failed: Notify,
    /// Whether the task that books permits runs.
    is_driven: AtomicBool,
    /// Whether the requests that wait for the store are bounded. The bounds do not apply here.
    is_bounded: AtomicBool,
}

impl Leases {
    pub(crate) fn new(set: &Arc<Set>, books: Weak<dyn BookingQueue>) -> Option<Leases> {
        let (members, clock) = (&set.members, &set.clock);
        let terms = members.iter().map(|member| member.terms.clone());
        let ledger = Ledger::new(terms, set.store.lease_counters().clone());
        let limiter =
            |account| RateLimiter::with_clock(Lease(Arc::clone(account)), DefaultClock::clone(clock));
        let limiters: Vec<_> = ledger.accounts.iter().map(limiter).collect();
        let mut named = members.iter().map(|member| member.name.as_str()).zip(&limiters);
        let (name, first) = named.next()?;
        let all = (members.len() > 1)
            .then(|| named.fold(AllOf::new(name, first), |all, (name, limiter)| all.with(name, limiter)));
        let failed = Notify::new();
        let (is_driven, is_bounded) = (AtomicBool::new(false), AtomicBool::new(false));
        Some(Leases { set: set.clone(), books, ledger, limiters, all, failed, is_driven, is_bounded })
    }

    /// Decides a request that does not wait. `None` leaves it to the store.
    pub(crate) fn try_acquire(
        self: &Arc<Leases>,
        request: &AllRequest<'_>,
    ) -> Option<Result<AllPermits, AllRefusal>> {
        let answer = match &self.all {
            Some(all) => all.try_acquire_many(request.clone()),
            None => match self.limiters[0].try_acquire_many(self.single_request(request)?) {
                Ok(grant) => return Some(Ok(grant.into())),
                Err(refusal) => Err(self.refused(refusal)),
            },
        };
        match answer {
            Ok(permits) => Some(Ok(permits)),
            Err(refusal) => {
                let Request { permits, most, .. } = request.to_request();
                let costs = self.set.costs(request, (permits.into(), most.max(permits).into())).ok()?;
                self.refuse(&refusal, &costs, Duration::ZERO).map(Err)
            }
        }
    }

    /// Returns the wait of a request in the queue of this process, which it joins when the wait is
    /// polled. `None` leaves the request to the store.
    pub(crate) fn acquire(&self, request: &AllRequest<'_>) -> Option<Wait> {
        match &self.all {
            Some(all) => Some(Wait::All(all.acquire_many(request.clone()))),
            None => Some(Wait::One(self.limiters[0].acquire_owned(self.single_request(request)?))),
        }
    }

    /// Waits in the queue. `None` leaves the request to the store. This happens, for example, if no
    /// request waits here while requests wait there for a store that is away (`are_held`). A
    /// request that no lease serves at once also arrives in the queue of the store, in case it
    /// moves there.
    pub(crate) async fn wait(
        self: &Arc<Leases>,
        wait: Wait,
        costs: &Costs,
        within: Option<Duration>,
        are_held: impl Fn() -> bool,
        arrive: impl FnOnce(),
    ) -> Option<Result<AllPermits, AllRefusal>> {
        // Dropped after the wait, which puts its permits back: bookings for queued requests end
        // with the last of these requests.
        let mut joined = None;
        let mut wait = pin!(self.answer(wait));
        match poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await {
            Poll::Ready(Ok(permits)) => return Some(Ok(permits)),
            Poll::Ready(Err(refusal)) => {
                return self.refuse(&refusal, costs, within.unwrap_or(Duration::MAX)).map(Err);
            }
            Poll::Pending => arrive(),
        }
        let now = self.set.clock.now();
        self.note_processes();
        self.ledger.waits(now, costs, within);
        let is_booked = self.ledger.ready_at(now, costs) < Nanos::MAX;
        if self.set.check(costs).is_err()
            || self.is_cut_off() && !self.waits_for_store()
            || self.ledger.note_waiting_costs(now, costs)
            || !is_booked && within.is_some() && self.ledger.is_backing_off(now)
            || !is_booked
                && !self.ledger.has_waiting()
                && (are_held() || !self.ledger.is_worthwhile(now, costs))
        {
            self.ledger.missed(costs);
            self.ledger.note_by_store(costs);
            if self.ledger.is_backing_off(now) {
                // Earlier requests are queued for a lease that cannot be had.
                self.handle_failure();
            }
            return None;
        }
        let number = self.ledger.joins(costs, within.is_none());
        let joined = joined.insert(Joined { ledger: &self.ledger, number });
        let mut failed = pin!(guarded(self.failed.notified()));
        if !self.drive() {
            return None;
        }
        loop {
            let answer = match select(wait.as_mut(), failed.as_mut()).await {
                Either::Left((answer, _)) => Some(answer),
                Either::Right(_) => None,
            };
            if answer.is_none() {
                // This request misses no failure that is notified from now on.
                failed.set(guarded(self.failed.notified()));
            }
            match answer {
                Some(Err(refusal)) if matches!(refusal.refusal(), Some(Refusal::Limited { .. })) => {
                    let waited = self.set.clock.now().saturating_since(now).as_duration();
                    let rest = within.map_or(Duration::MAX, |within| within.saturating_sub(waited));
                    let refused = self.refuse(&refusal, costs, rest);
                    // No call ends in time, and the store is not away.
                    let is_late = rest.is_zero() && waited > self.set.store.timeout() / 2;
                    let limited = || self.limited(&refusal, Nanos::from_duration(size::HORIZON));
                    return match refused {
                        None if is_late && !self.set.is_failing() => Some(Err(limited())),
                        refused => refused.map(Err),
                    };
                }
                Some(answer) => return Some(answer),
                None if self.set.store.has_ended() => return None,
                None if within.is_none() && self.waits_for_store() => {}
                None if self.ledger.is_short(joined.number) => return None,
                None => {}
            }
        }
    }

    /// Returns the refusal of a request that the leases cannot serve in time, if that is known.
    fn refuse(
        self: &Arc<Leases>,
        refusal: &AllRefusal,
        costs: &Costs,
        longest: Duration,
    ) -> Option<AllRefusal> {
        let Some(Refusal::Limited { .. }) = refusal.refusal() else { return None };
        self.set.check(costs).ok()?;
        let ledger = &self.ledger;
        ledger.missed(costs);
        if self.is_cut_off() {
            ledger.note_by_store(costs);
            return None;
        }
        let due = ledger.ready_at(self.set.clock.now(), costs);
        // The clock is read again, because a lease may have come since the first reading: its
        // permits would be due later than that.
        let now = self.set.clock.now();
        let latest = now.saturating_add(Nanos::from_duration(longest));
        let limited = |retry_after| self.limited(refusal, retry_after);
        let known = ledger.refusal(now, costs, longest);
        if latest < due && due < Nanos::MAX {
            let retry_after = due.saturating_since(latest);
            return Some(match known {
                Some((_, Refusal::Paused { .. })) => Refusal::Paused { retry_after }.into(),
                _ => limited(retry_after),
            });
        }
        if let Some((_, paused @ Refusal::Paused { .. })) = known {
            ledger.note_by_store(costs);
            return Some(paused.into());
        }
        if let Some(next) = ledger.next_lease_at(now, costs, longest) {
            if next <= now {
                self.drive();
            }
            let known = known.and_then(|(_, refusal)| refusal.retry_after()).unwrap_or_default();
            // A lease that is asked for now comes after a call, so not in zero time.
            let soonest = Nanos::from_duration(known).max(SOONEST);
            return Some(limited(next.saturating_since(now).max(soonest)));
        }
        ledger.note_by_store(costs);
        if let Some((limit, refusal)) = known {
            return Some(AllRefusal::from_member(self.set.members[limit].name.as_str(), refusal));
        }
        let is_behind = || ledger.has_waiting() && self.in_queue() > 0 && !ledger.has_plenty(now, costs);
        if longest == Duration::ZERO && is_behind() {
            if self.waits_for_store() && self.set.is_failing() {
                // The queued requests wait for the store. At the store this request might overtake
                // them.
                self.set.store.count_degraded();
                let away = || Away::For(self.set.rest()).refusal().into();
                return Some(self.set.known_pause.refusal().unwrap_or_else(away));
            }
            // Requests queue for permits that are not booked yet. A granted request does not queue,
            // even if its task did not run, or never runs again.
            return Some(limited(Nanos::from_duration(size::HORIZON)));
        }
        if ledger.is_worthwhile(now, costs) {
            self.drive();
        }
        None
    }

    /// Returns the refusal with another time.
    fn limited(&self, refusal: &AllRefusal, retry_after: Nanos) -> AllRefusal {
        let refusal_of = |name: &str| AllRefusal::from_member(name, Refusal::Limited { retry_after });
        refusal.member().map_or(Refusal::Limited { retry_after }.into(), refusal_of)
    }

    /// Returns whether the store is away, and leases are due much later: they are for the requests
    /// that wait for them already.
    fn is_cut_off(&self) -> bool {
        let soon = self.set.clock.now().saturating_add(TRUST);
        self.ledger.booked_till() > soon && self.set.is_failing()
    }

    /// Returns how many permits of a limit can be taken.
    pub(crate) fn usable(&self, limit: usize) -> u64 {
        self.ledger.usable(limit, self.set.clock.now())
    }

    /// Notes that a request of this process waits in the queue of the store.
    pub(crate) fn note_store_wait(&self) {
        self.ledger.kick.notify_one();
    }

    /// Ends all leases: their unused permits go back to the store.
    pub(crate) fn end(&self) {
        self.give_back(&self.ledger.end(self.set.clock.now()));
        self.ledger.kick.notify_one();
        self.report_counts();
    }

    /// Ends all leases when a pause ends, because a lease may have been booked before the pause for
    /// a time after it. Then permits are booked only for queued requests.
    pub(crate) fn resume(&self) {
        self.give_back(&self.ledger.end(self.set.clock.now()));
        self.forget_pause();
        self.report_counts();
    }

    /// Forgets what was reported of a pause that has ended. The leases that were booked since stay.
    pub(crate) fn forget_pause(&self) {
        self.ledger.forget();
        self.ledger.note_recovery();
        if self.ledger.has_waiting() {
            self.ledger.kick.notify_one();
        }
    }

    /// Ends all leases of a limit, or of all limits, and drops their permits. Returns how many
    /// permits these were.
    pub(crate) fn discard(&self, only: Option<usize>) -> u64 {
        let lost = self.ledger.discard(only);
        self.ledger.forget();
        self.ledger.kick.notify_one();
        self.report_counts();
        lost
    }

    /// Refuses the queued requests.
    pub(crate) fn close(&self) {
        // A panic of a user's waker must not keep the line from being closed.
        _ = catch_unwind(AssertUnwindSafe(|| match &self.all {
            Some(all) => all.close(),
            None => self.limiters[0].close(),
        }));
    }

    /// Kicks the task that books permits; the first call starts it. Returns whether that task runs.
    fn drive(self: &Arc<Leases>) -> bool {
        self.ledger.kick.notify_one();
        // SeqCst, like the notification of a failure: a request that misses the notification at the
        // end of the task sees here that the task has ended.
        if self.is_driven.swap(true, Ordering::SeqCst) {
            return true;
        }
        let (driving, kick) = (Driving(Arc::downgrade(self)), self.ledger.kick.clone());
        let clock = DefaultClock::clone(&self.set.clock);
        let (mut back, mut is_back) = (self.set.store.watch_recovery(), false);
        self.set.store.spawn(Box::pin(async move {
            loop {
                let Some(leases) = driving.0.upgrade() else { return };
                // The server of another limit may have come back.
                if std::mem::take(&mut is_back) && !leases.set.is_failing() {
                    leases.ledger.note_recovery();
                }
                // A limiter that is dropped meanwhile gives its permits back before this guard is
                // dropped.
                let message = leases.set.store.begin_message();
                let next = leases.step().await;
                drop(leases);
                drop(message);
                let until = match next {
                    Next::Now => continue,
                    Next::At(until) => until,
                };
                let (mut kicked, mut sleep) = (pin!(kick.notified()), pin!(clock.sleep_until(until)));
                let mut comes_back = pin!(back.changed());
                poll_fn(|context| {
                    is_back = comes_back.as_mut().poll(context).is_ready();
                    let goes_on = is_back || kicked.as_mut().poll(context).is_ready();
                    if goes_on { Poll::Ready(()) } else { sleep.as_mut().poll(context) }
                })
                .await;
            }
        }))
    }

    /// Returns how many requests wait in the queue of this process.
    pub(crate) fn in_queue(&self) -> usize {
        match &self.all {
            Some(all) => all.status().waiting,
            None => self.limiters[0].status().waiting,
        }
    }

    /// Returns what a request asks of the only limit; `None` if it names another limit.
    fn single_request(&self, request: &AllRequest<'_>) -> Option<Request> {
        let mut alone = request.to_request();
        for (name, n) in request.costs() {
            if name != self.set.members[0].name {
                return None;
            }
            (alone.permits, alone.most) = (n, n);
        }
        Some(alone)
    }

    async fn answer(&self, wait: Wait) -> Result<AllPermits, AllRefusal> {
        match wait {
            Wait::All(wait) => wait.await,
            Wait::One(wait) => match wait.await {
                Ok(grant) => Ok(grant.into()),
                Err(refusal) => Err(self.refused(refusal)),
            },
        }
    }

    /// Returns the refusal by the only limit, or by its queue.
    fn refused(&self, refusal: Refusal) -> AllRefusal {
        match refusal {
            Refusal::Limited { .. } => AllRefusal::from_member(self.set.members[0].name.as_str(), refusal),
            _ => refusal.into(),
        }
    }

    /// Gives permits back to the store, without waiting: a lost message loses permits.
    fn give_back(&self, returns: &[Return]) {
        for Return { limit, permits, due, before } in returns {
            let mut costs = vec![0; self.set.members.len()];
            costs[*limit] = *permits;
            match before {
                Some(before) => {
                    let mut values = vec![Vec::new(); costs.len()];
                    values[*limit] = before.to_vec();
                    self.set.give_back(&[GivenBack { due: *due, permits: &costs, before: &values }]);
                }
                None => self.set.send_detached(Operation::Refund { due: *due }, &exactly(costs)),
            }
        }
        self.ledger.forget();
    }

    /// Reports the counts of leased permits to the observer of the store. The caller holds no lock.
    fn report_counts(&self) {
        self.ledger.counters.report(self.set.store.events());
    }

    /// Reports the number of processes to the ledger. A process that books nothing needs the number
    /// as well: some processes lease only because there are others.
    fn note_processes(&self) {
        let store = &self.set.store;
        if let Some(processes) = store.processes().or_else(|| store.clients()) {
            self.ledger.set_processes(processes.get().into());
        }
    }

    /// Returns whether requests without a maximum wait stay in the queue although no lease can be
    /// had now: they wait for a store that is away, in their order. If their number is bounded,
    /// they wait in the queue that has the bounds.
    fn waits_for_store(&self) -> bool {
        self.set.store.while_away() == WhileAway::Wait
            && self.ledger.is_hopeful()
            && !self.ledger.are_mixed(self.set.clock.now())
            && !self.is_bounded.load(Ordering::Relaxed)
    }

    /// Notes whether the requests that wait for the store are bounded.
    pub(crate) fn set_bounded(&self, is_bounded: bool) {
        // Relaxed: the lock of the ledger orders this. Either the failure of a call is seen here,
        // or the bounds are seen when that failure is notified.
        let was_bounded = self.is_bounded.swap(is_bounded, Ordering::Relaxed);
        if is_bounded && !was_bounded && self.ledger.is_backing_off(self.set.clock.now()) {
            self.notify_failed();
        }
    }

    /// Handles that no lease can be had now. Requests that stay are not woken.
    fn handle_failure(&self) {
        if !(self.waits_for_store() && self.ledger.are_endless()) {
            self.notify_failed();
        }
    }

    /// Notifies the queued requests that leases do not serve those for which none is booked.
    fn notify_failed(&self) {
        self.ledger.note_failure(self.set.clock.now(), self.in_queue());
        self.failed.notify_waiters();
    }

    /// Makes a booking. The queue to the store keeps the order of several bookings.
    fn book(&self, order: &Order) -> oneshot::Receiver<Result<Reply, Away>> {
        let (booked, reply) = oneshot::channel();
        if let Some(books) = self.books.upgrade() {
            books.book(order.costs.clone(), order.longest, booked);
        }
        reply
    }

    /// Handles the result of a booking.
    fn handle_reply(&self, order: &Order, reply: Result<Reply, Away>) {
        let set = &self.set;
        let outcome = self.ledger.handle_reply(set.clock.now(), order, reply.as_ref().map_err(|away| *away));
        if let Ok(reply) = &reply {
            self.report_counts();
            if reply.answer == Answer::Done {
                set.observers.left(set.tightest(reply));
            }
        }
        match outcome {
            OrderOutcome::Booked(limits, returns) => {
                if !returns.is_empty() {
                    self.give_back(&returns);
                }
                limits.into_iter().for_each(|i| serve(&self.limiters[i]));
                if self.ledger.is_backing_off(set.clock.now()) {
                    // The queued requests that no booking serves move to the store.
                    self.handle_failure();
                }
            }
            OrderOutcome::Refused => self.limiters.iter().for_each(serve),
            OrderOutcome::NoneSooner => {}
            OrderOutcome::Failed => self.handle_failure(),
        }
        // Last, because the next booking is made right after this: it serves queued requests that
        // would be refused now, and would come to the store behind it.
        self.ledger.note_handled(order);
    }

    /// Makes one step of the task that books permits.
    async fn step(&self) -> Next {
        self.note_processes();
        let has_store_queue = self.books.upgrade().is_some_and(|books| books.has_waiting());
        let plan = self.ledger.plan(self.set.clock.now(), self.in_queue(), has_store_queue);
        self.report_counts();
        match plan {
            Plan::Back(returns) => self.give_back(&returns),
            Plan::Book(order) => {
                let replies: Vec<_> = (0..order.times).map(|_| self.book(&order)).collect();
                for reply in replies {
                    self.handle_reply(&order, reply.await.unwrap_or(Err(Away::Misconfigured)));
                }
            }
            Plan::Fail(until) => {
                self.handle_failure();
                return Next::At(until);
            }
            Plan::Rest(until) => return Next::At(until),
        }
        Next::Now
    }
}

/// Makes a limiter serve its queue, by a debit of no permits, and refuse the queued requests that
/// no booking serves in time.
fn serve(limiter: &RateLimiter<Lease>) {
    // A panic of a user's waker must not end the task that books permits.
    _ = catch_unwind(AssertUnwindSafe(|| limiter.debit(0)));
}

/// The task that books permits, which runs until the leases are dropped. If it is dropped before
/// that, its store has ended, and the queued requests are notified.
struct Driving(Weak<Leases>);

impl Drop for Driving {
    fn drop(&mut self) {
        if let Some(leases) = self.0.upgrade() {
            leases.is_driven.store(false, Ordering::SeqCst);
            leases.notify_failed();
        }
    }
}

/// A wait in the queue of this process.
pub(crate) enum Wait {
    One(AcquireOwned<Lease>),
    All(AcquireAll),
}

/// The shortest `retry_after` of a refused request while a lease is asked for.
const SOONEST: Nanos = Nanos::new(1_000_000);

/// When the task that books permits makes its next step.
enum Next {
    Now,
    /// At this time, or when it is kicked.
    At(Nanos),
}

/// A request in the queue of this process.
struct Joined<'a> {
    ledger: &'a Ledger,
    number: u64,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.ledger.leaves(self.number);
    }
}

impl Drop for Leases {
    /// Returns the leased permits to the store. No booking of these leases is in flight then: the
    /// task that awaits the reply to a booking holds the leases until the reply has come.
    fn drop(&mut self) {
        self.end();
    }
}
