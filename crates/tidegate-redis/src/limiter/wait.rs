//! How a request of a limiter waits: at the store, or without it in an outage or a pause.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::{AllPermits, AllRefusal, DefaultClock, Nanos, Refusal, Timer};

use crate::counted::Counted;
use crate::error::with_left;
use crate::guarded::guarded;
use crate::limiter::StoreLimiter;
use crate::limiter::request::{Admitted, OwnedRequest, report_granted};
use crate::line::{Outcome, Returning, Ticket};
use crate::observe::Watch;
use crate::set::Fallback;
use crate::store::Away;

impl StoreLimiter {
    /// Waits for permits, for at most `longest` since the request came, and notifies the observers
    /// of the result. `number` is that of an earlier arrival.
    pub(super) async fn decided(
        &self,
        ask: OwnedRequest,
        longest: Duration,
        came: Nanos,
        number: Option<u64>,
        watch: Option<Watch>,
    ) -> Result<AllPermits, AllRefusal> {
        let line = &self.line;
        let admitted = self.wait(&ask, longest, came, number).await;
        let admitted = with_left(admitted, ask.all_else.wants_left, self.status()).await;
        match (&admitted, watch) {
            (Ok(Admitted::Exempt), Some(watch)) => watch.exempted(),
            (Ok(Admitted::Booked(granted)), Some(watch)) => report_granted(watch, &line.set, granted),
            (_, watch) => {
                let answer = admitted.map(|admitted| admitted.permits(line, &ask));
                watch.into_iter().for_each(|watch| watch.answered(answer.as_ref()));
                return answer;
            }
        }
        admitted.map(|admitted| admitted.permits(line, &ask))
    }

    /// Waits for permits, for at most `longest` since the request came.
    async fn wait(
        &self,
        ask: &OwnedRequest,
        longest: Duration,
        came: Nanos,
        mut number: Option<u64>,
    ) -> Result<Admitted, AllRefusal> {
        if ask.all_else.exempt {
            return Ok(Admitted::Exempt);
        }
        self.line.set.check(&ask.costs)?;
        let (set, mut returning) = (&self.line.set, None);
        loop {
            let recoveries = set.store.recoveries();
            // The request waited for a lease, or for a share, before it joins the queue.
            let before = number.map_or(Nanos::ZERO, |_| set.now().saturating_since(came)).as_duration();
            let asked = ask.asked(set, self.rest(longest, came), came, true);
            let ticket = Ticket::new(&self.line, asked, number);
            drop(returning.take());
            number = Some(ticket.number());
            let undecided = match ticket.await {
                Outcome::Granted(mut granted) => {
                    granted.waited = granted.waited.saturating_add(before);
                    set.log_grant(&granted.reply);
                    return Ok(Admitted::Booked(granted));
                }
                Outcome::Refused(refusal) => return Err(refusal),
                Outcome::Undecided(undecided) => undecided,
            };
            // Boxed: a future that waits for the store is small.
            let alone =
                Box::pin(self.wait_without_store(ask, longest, came, undecided, recoveries, &mut returning));
            if let Some(answer) = alone.await {
                set.store.count_degraded();
                return answer;
            }
        }
    }

    /// Waits for permits without the store, which had come back `recoveries` times when the request
    /// asked it. Returns `None` if the request asks the store again.
    async fn wait_without_store(
        &self,
        ask: &OwnedRequest,
        longest: Duration,
        came: Nanos,
        undecided: Away,
        recoveries: u64,
        returning: &mut Option<Returning>,
    ) -> Option<Result<Admitted, AllRefusal>> {
        let set = &self.line.set;
        // The first call is not part of the wait.
        let before = match longest {
            Duration::ZERO => longest,
            _ => set.now().saturating_since(came).as_duration().saturating_sub(set.store.timeout()),
        };
        match self.line.fallback(undecided) {
            Fallback::Grant => Some(Ok(Admitted::Unlimited(before))),
            Fallback::Refuse(refusal) => Some(Err(refusal)),
            Fallback::Paused(refusal)
                if longest < Duration::MAX && self.rest(longest, came) <= set.known_pause.rest() =>
            {
                Some(Err(refusal))
            }
            Fallback::Paused(_) => {
                *returning = Some(Returning::new(&self.line, recoveries));
                let ended = self.until_closed(self.pause_ended());
                self.until_recovery(recoveries, ended).await?.err().map(Err)
            }
            Fallback::Share(share) => {
                let rest = self.rest(longest, came);
                let request = ask.request(rest);
                let wait = |request| self.until_paused(self.until_closed(share.acquire_many(request)));
                let answer = match rest {
                    Duration::ZERO => share.try_acquire_many(request),
                    Duration::MAX => {
                        *returning = Some(Returning::new(&self.line, recoveries));
                        self.until_recovery(recoveries, wait(request)).await??
                    }
                    // The store might not serve in time a request that the share has accepted.
                    _ => wait(request).await?,
                };
                let shared = answer.map(|permits| Admitted::Shared(permits, before));
                Some(shared.map_err(|refusal| set.by_share(refusal, undecided.rest())))
            }
        }
    }

    /// Waits for permits of a share, until the store has come back more than `recoveries` times.
    /// Otherwise requests that wait for shares would be granted in addition to those that the store
    /// grants.
    async fn until_recovery<T>(&self, recoveries: u64, wait: impl Future<Output = T>) -> Option<T> {
        let mut back = self.line.set.store.watch_recovery();
        if *back.borrow() != recoveries {
            back.mark_changed();
        }
        // The server of another limit may have come back.
        let comes_back = async { while back.changed().await.is_ok() && self.line.set.is_failing() {} };
        match select(pin!(wait), pin!(guarded(comes_back))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    /// Waits for permits of a share, until this process learns of a pause.
    async fn until_paused<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        match select(pin!(self.line.set.known_pause.until_changed(false)), pin!(wait)).await {
            Either::Left(_) => None,
            Either::Right((answer, _)) => Some(answer),
        }
    }

    /// Waits for the end of the pause that this process knows of.
    async fn pause_ended(&self) -> Result<(), AllRefusal> {
        let (set, clock) = (&self.line.set, DefaultClock::clone(&self.line.set.clock));
        let end = set.now().saturating_add(Nanos::from_duration(set.known_pause.rest()));
        _ = select(pin!(clock.sleep_until(end)), pin!(set.known_pause.until_changed(true))).await;
        Ok(())
    }

    /// Returns the rest of the maximum wait of a request that came at `came`.
    pub(super) fn rest(&self, longest: Duration, came: Nanos) -> Duration {
        match longest {
            Duration::MAX => longest,
            longest => longest.saturating_sub(self.line.set.now().saturating_since(came).as_duration()),
        }
    }

    /// Waits, unless the limiter is closed before the end of the wait.
    async fn until_closed<T>(
        &self,
        wait: impl Future<Output = Result<T, AllRefusal>>,
    ) -> Result<T, AllRefusal> {
        let _waiting = Counted::new(&self.line.waiting);
        let mut closed = self.line.set.closed.subscribe();
        match select(pin!(wait), pin!(guarded(closed.wait_for(|closed| *closed)))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Refusal::Closed.into()),
        }
    }
}
