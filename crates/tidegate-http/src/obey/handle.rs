//! [`Obey`]: a limiter that obeys a server.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use tidegate::{
    AllPermits, AllRefusal, AllRequest, AnyLimiter, AnyReservation, Grant, Nanos, Pause, Refusal,
};

use super::call::{Call, Held, Obeyed};
use super::costs::{Count, Load};
use super::first_panic::FirstPanic;
use super::options::Options;
use super::pace::Pacing;
use super::reservation::CallReservation;
use super::scopes::ScopeRef;
use super::state::{Actions, State, Terms, Ticket};
use crate::When;
use crate::read::ResponseLimits;

/// A limiter that obeys the responses of a server. Clones share it.
///
/// A call begins with [`acquire`](Obey::acquire) and ends with [`Call::obey`]. See the
/// [module](crate::obey).
///
/// # Default costs
///
/// A call counts with the costs that its request names, and otherwise with the number of permits
/// that it got of each limit that it does not name. The [default
/// costs](tidegate::AllOf::default_cost) of an `AllOf` are unknown here: a call that does not name
/// such a limit is charged its default cost, but counts as one permit in what the server reports
/// about the limit. So a request of an `AllOf` with default costs should name them, as in
/// `[("tokens", 1000)]`.
///
/// # Costs of 0
///
/// A call that costs 0 begins at once and takes no permits. There are three exceptions: in an
/// `AllOf`, a default cost and a [`CountingLimit`](tidegate::CountingLimit) still apply, and a
/// closed limiter refuses the call. An [exempt](AllRequest::exempt) call has no exceptions. The
/// responses to both are obeyed like any other.
///
/// # A limiter that is replaced
///
/// The names of the limiter's members are read once. If a [`Replaceable`](tidegate::Replaceable)
/// gets a limiter with other names, the limits that the server reports by these names no longer
/// lower permits; their exhaustion still pauses the limiter. Permits that go back after a
/// replacement go to the new limiter, although the old one granted them. So rather replace the
/// `Obey`, too.
///
/// # Fairness and cancel safety
///
/// Like those of the limiter, except that a call waits a second time, at the end of the queue, in
/// two cases. Either another call took the last units that the server allows while this call was
/// granted, or the call's [scope](super::Scopes) got another limiter, such as that of its
/// [bucket](super::Scopes#buckets). In both cases the permits of the first wait go back to the
/// limiter: the call pays once, and nothing if it is refused. A limiter over a store does not take
/// back all permits in some cases, as the limitations of its crate tell. Observers of the limiter
/// are notified of each grant.
///
/// A call can cost more than the server allows until a reset, while the server allows smaller
/// calls. If the call does not wait, or if its [maximum wait](AllRequest::within) is over before
/// the reset, it is refused with [`Refusal::Paused`], even by a limiter in shadow mode, and other
/// calls go on. Otherwise the limiter pauses until the reset, for all calls. The limiter stays
/// paused if this call is dropped while it waits, as nothing tells whether the pause has other
/// reasons by then: [`forget`](Obey::forget) ends it.
#[derive(Clone)]
pub struct Obey {
    shared: Arc<Shared>,
    /// The scope of this handle's calls, if the handle belongs to [`Scopes`](super::Scopes).
    scope_ref: Option<ScopeRef>,
}

struct Shared {
    limiter: AnyLimiter,
    /// The same limiter, in a form whose calls do not block a thread.
    non_blocking: AnyLimiter,
    options: Options,
    /// The names of the limiter's members.
    members: Vec<String>,
    state: Mutex<State>,
    paces: Vec<Pacing>,
    /// Draws the jitter of each pause.
    random: RandomState,
}

/// The number of tries of a call that the server does not allow. The last try begins the call in
/// any case.
///
/// A grant after a wait counts as the first try again: the limiter paused, and in each window
/// another call was faster. So the tries run out only in two cases: the limiter grants without a
/// wait, as in shadow mode, or the call costs more than the server allows in a window.
const TRIES: usize = 4;

/// The tries that a call has left to begin.
#[derive(Debug)]
pub(super) struct Tries {
    left: usize,
    /// The maximum wait of the call, if it has one.
    within: Option<Duration>,
    /// The total wait of all tries.
    waited: Duration,
}

impl Tries {
    /// Creates the tries of a call that waits.
    pub(super) fn new(request: &AllRequest<'_>) -> Self {
        Self { left: TRIES, within: request.to_request().within, waited: Duration::ZERO }
    }

    /// Creates the tries of a call that does not wait.
    fn at_once() -> Self {
        Self { left: TRIES, within: Some(Duration::ZERO), waited: Duration::ZERO }
    }

    /// Returns how long the call may still wait.
    fn rest(&self) -> Duration {
        self.within.map_or(Duration::MAX, |within| within.saturating_sub(self.waited))
    }

    /// Returns the request of the next try. Its maximum wait is the rest of the call's maximum
    /// wait.
    pub(super) fn next<'a>(&self, request: &AllRequest<'a>) -> AllRequest<'a> {
        match self.within {
            Some(_) => request.clone().within(self.rest()),
            None => request.clone(),
        }
    }

    /// Returns this refusal of a try as a refusal of the call. An equal call can wait for as long
    /// as this one could at first, so it is accepted earlier than an equal try.
    pub(super) fn refused(&self, mut refusal: AllRefusal) -> AllRefusal {
        if self.within.is_some()
            && let AllRefusal::Member { refusal, .. } | AllRefusal::Queue { refusal, .. } = &mut refusal
            && let Refusal::Limited { retry_after } | Refusal::Paused { retry_after } = refusal
        {
            *retry_after = retry_after.as_duration().saturating_sub(self.waited).into();
        }
        refusal
    }
}

impl Shared {
    /// Gives back the permits of a request that begins no call.
    fn refund(&self, request: &AllRequest<'_>, permits: AllPermits) {
        let (got, is_degraded) = (permits.permits(), permits.is_degraded());
        // A member in shadow mode may have let the request pass without permits.
        let passed = self.members.iter().filter(|name| !permits.took_from(name));
        let given = passed.fold(request.clone(), |given, name| given.cost(name, 0));
        drop(permits);
        let asked = request.to_request();
        // `got` counts only the limits that the request does not name. A request that was granted
        // without permits has none to give back, and a store has not granted those of a request
        // that was decided while the store was away.
        let has_none = asked.exempt || (got == 0 && asked.permits > 0);
        if !has_none && !is_degraded {
            // The request was granted, so each of its names is the name of a member.
            let _ = self.non_blocking.refund(given.cost_of_others(got));
        }
    }
}

impl Obey {
    /// Creates a limiter that obeys the server that its calls go to, with the default [`Options`].
    /// The default options measure resets on the default clock. A limiter on another clock, such as
    /// a `ManualClock`, needs [`with_options`](Obey::with_options) and that
    /// [`clock`](Options::clock).
    #[must_use]
    pub fn new(limiter: impl Into<AnyLimiter>) -> Self {
        Self::with_options(limiter, Options::new())
    }

    /// Creates a limiter that obeys the server that its calls go to.
    #[must_use]
    pub fn with_options(limiter: impl Into<AnyLimiter>, options: Options) -> Self {
        let limiter = limiter.into();
        let non_blocking = limiter.non_blocking();
        let members = non_blocking.status().members.into_iter().map(|(name, _)| name.to_string()).collect();
        let now = options.now();
        let paces = options.paces.iter().map(|pace| Pacing::new(pace.clone(), now)).collect();
        let (state, random) = (Mutex::new(State::new()), RandomState::new());
        let shared = Shared { limiter, non_blocking, options, members, state, paces, random };
        Self { shared: Arc::new(shared), scope_ref: None }
    }

    /// Waits for one permit of each limit, and begins a call.
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::acquire`].
    pub async fn acquire(&self) -> Result<Call, AllRefusal> {
        self.acquire_many(AllRequest::new()).await
    }

    /// Waits for the permits of a call, and begins it. A call [may cost nothing](Obey#costs-of-0).
    ///
    /// The [maximum wait](AllRequest::within) of a request applies to the whole call, even if the
    /// call waits several times.
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::acquire_many`].
    pub async fn acquire_many(&self, request: impl Into<AllRequest<'_>>) -> Result<Call, AllRefusal> {
        let request = request.into();
        let (mut at, mut tries) = (self.current(), Tries::new(&request));
        loop {
            let permits = or_empty(at.shared.limiter.acquire_many(tries.next(&request)).await);
            let permits = permits.map_err(|refusal| tries.refused(refusal))?;
            if let Some(call) = at.begin_allowed(&request, permits, &mut tries)? {
                return Ok(call);
            }
        }
    }

    /// Begins a call now, or refuses it.
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::try_acquire`].
    pub fn try_acquire(&self) -> Result<Call, AllRefusal> {
        self.try_acquire_many(AllRequest::new())
    }

    /// Begins a call with these costs now, or refuses it. A call [may cost
    /// nothing](Obey#costs-of-0).
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::try_acquire_many`].
    pub fn try_acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<Call, AllRefusal> {
        let request = request.into();
        let (mut at, mut tries) = (self.current(), Tries::at_once());
        loop {
            let permits = or_empty(at.shared.limiter.try_acquire_many(tries.next(&request)));
            let permits = permits.map_err(|refusal| tries.refused(refusal))?;
            if let Some(call) = at.begin_allowed(&request, permits, &mut tries)? {
                return Ok(call);
            }
        }
    }

    /// Blocks the calling thread until it has the permits of a call, and begins it. Do not call it
    /// from a task.
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::blocking_acquire_many`].
    pub fn blocking_acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<Call, AllRefusal> {
        let request = request.into();
        let (mut at, mut tries) = (self.current(), Tries::new(&request));
        loop {
            let permits = or_empty(at.shared.limiter.blocking_acquire_many(tries.next(&request)));
            let permits = permits.map_err(|refusal| tries.refused(refusal))?;
            if let Some(call) = at.begin_allowed(&request, permits, &mut tries)? {
                return Ok(call);
            }
        }
    }

    /// Reserves a position in the queue now, for a call whose cost is known only later. Await the
    /// reservation to begin the call, and report the real cost with [`Call::settle`]. An estimate
    /// of 0 begins at once.
    ///
    /// # Errors
    ///
    /// The errors of [`AnyLimiter::reserve`].
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    /// use tidegate_http::obey::{Obey, Options};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let requests = RateLimiter::with_clock(policy, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(6000), 6000);
    /// let tokens = RateLimiter::with_clock(policy, clock.clone());
    /// let both = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let api = Obey::with_options(both, Options::new().clock(clock));
    ///
    /// let mut call = api.reserve([("tokens", 800)])?.await?;
    /// // ... send, and read the response
    /// call.obey(StatusCode::OK, &HeaderMap::new());
    /// call.settle([("tokens", 300)])?;
    /// assert_eq!(tokens.status().available, 5700);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<CallReservation<'a>, AllRefusal> {
        CallReservation::new(self, request.into())
    }

    /// Begins a call that has its permits from elsewhere. The call begins even if the server allows
    /// no more calls.
    pub fn begin<'a>(&self, request: impl Into<AllRequest<'a>>) -> Call {
        let request = request.into();
        // The most permits that the request may have got.
        let at = self.current();
        let load = at.load(&request, request.to_request().most);
        let ticket = at.force_begin(load);
        Call::new(at, ticket, Duration::ZERO, Held::Nothing)
    }

    /// Returns this handle, or a handle to the limiter that its scope has now, if that is another
    /// one: the limiter of the route's bucket, or that of a scope that was forgotten meanwhile.
    pub(super) fn current(&self) -> Obey {
        let moved = self.scope_ref.as_ref().and_then(|scope_ref| scope_ref.moved(self));
        moved.unwrap_or_else(|| self.clone())
    }

    /// Follows the scope to the limiter that it has now. Returns whether that is another one.
    fn switch_to_current(&mut self) -> bool {
        let here = self.current();
        let moved = !here.is_same(self);
        *self = here;
        moved
    }

    /// Begins a call, unless the server does not allow it, or its route has moved to another
    /// limiter. In these cases the permits go back to the limiter that granted them. Returns `None`
    /// if the call is to ask again.
    fn begin_allowed(
        &mut self,
        request: &AllRequest<'_>,
        permits: AllPermits,
        tries: &mut Tries,
    ) -> Result<Option<Call>, AllRefusal> {
        // A limiter can grant a call without permits; the server counts that call too.
        let got = permits.permits().max(request.to_request().permits);
        let (granted_by, mut panic) = (self.shared.clone(), FirstPanic::default());
        let begun = panic.catch(|| self.begin_try(request, got, permits.waited(), tries));
        if let Some(Ok(Some(ticket))) = begun {
            return Ok(Some(Call::new(self.clone(), ticket, tries.waited, Held::Permits(permits))));
        }
        granted_by.refund(request, permits);
        panic.resume();
        begun.transpose().map(|_| None)
    }

    /// Begins a call with the permits of this reservation, unless the server does not allow it, or
    /// its route has moved to another limiter. In these cases the permits go back. Returns `None`
    /// if the call is to ask again.
    pub(super) fn begin_reserved(
        &mut self,
        request: &AllRequest<'_>,
        reservation: AnyReservation,
        grant: Grant,
        tries: &mut Tries,
    ) -> Result<Option<Call>, AllRefusal> {
        let got = grant.permits().max(request.to_request().permits);
        let mut panic = FirstPanic::default();
        let begun = panic.catch(|| self.begin_try(request, got, grant.waited(), tries));
        if let Some(Ok(Some(ticket))) = begun {
            let held = Held::Reservation(Mutex::new(reservation));
            return Ok(Some(Call::new(self.clone(), ticket, tries.waited, held)));
        }
        reservation.settle_unused();
        panic.resume();
        begun.transpose().map(|_| None)
    }

    /// Begins a call that got `got` permits after the wait `waited`. Returns `None` if the call is
    /// to ask again: its route has moved to another limiter, or the server does not allow it before
    /// a reset, for which it may wait.
    fn begin_try(
        &mut self,
        request: &AllRequest<'_>,
        got: u32,
        waited: Duration,
        tries: &mut Tries,
    ) -> Result<Option<Ticket>, AllRefusal> {
        tries.waited = tries.waited.saturating_add(waited);
        if self.switch_to_current() {
            return Ok(None);
        }
        let load = self.load(request, got);
        if !waited.is_zero() && self.state().fits(&load) {
            tries.left = TRIES;
        }
        tries.left = tries.left.saturating_sub(1);
        let asked = request.to_request();
        if tries.left == 0 || asked.exempt {
            return Ok(Some(self.force_begin(load)));
        }
        self.begin_if_allowed(load, tries).map_err(|refusal| match asked.wants_left {
            true => refusal.with_left(self.shared.non_blocking.status()),
            false => refusal,
        })
    }

    fn force_begin(&self, load: Load) -> Ticket {
        let now = self.now();
        let mut state = self.state();
        let ticket = state.force_begin(now, load);
        let shut = state.exhausted_until(now);
        drop(state);
        self.pause_begun(ticket, shut, now)
    }

    /// Moves a call here that began elsewhere, `age` ago.
    fn move_in(&self, ticket: &mut Ticket, age: Nanos, panic: &mut FirstPanic) {
        let now = self.now();
        let mut state = self.state();
        *ticket = state.move_in(now, ticket, age);
        let shut = state.exhausted_until(now);
        drop(state);
        panic.catch(|| self.pause_until(shut, now));
    }

    fn begin_if_allowed(&self, load: Load, tries: &Tries) -> Result<Option<Ticket>, AllRefusal> {
        let now = self.now();
        let mut state = self.state();
        let begun = state.begin(now, load);
        let shut = state.exhausted_until(now);
        drop(state);
        let until = match begun {
            Ok(ticket) => return Ok(Some(self.pause_begun(ticket, shut, now))),
            Err(until) => until,
        };
        self.pause_until(shut, now);
        if Some(until) > shut {
            // The server allows smaller calls, so the pause is only for this call to wait.
            let wait = self.with_jitter(until.saturating_since(now).into());
            if let Some(retry_after) = wait.checked_sub(tries.rest()).filter(|late| !late.is_zero()) {
                let retry_after = retry_after.into();
                return Err(tries.refused(Refusal::Paused { retry_after }.into()));
            }
            // A key without room for a pause has no permits either.
            let _ = self.pause(wait, Pause::lasting(wait).keep_permits());
        }
        Ok(None)
    }

    /// Pauses the limiter for a call that has begun. If a waker or an observer panics in the pause,
    /// the call ends.
    fn pause_begun(&self, mut ticket: Ticket, until: Option<Nanos>, now: Nanos) -> Ticket {
        let mut panic = FirstPanic::default();
        if panic.catch(|| self.pause_until(until, now)).is_none() {
            self.end_call(&mut ticket);
        }
        panic.resume();
        ticket
    }

    fn load(&self, request: &AllRequest<'_>, got: u32) -> Load {
        Load::new(request, got, &self.shared.members)
    }

    fn now(&self) -> Nanos {
        self.shared.options.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pause_until(&self, until: Option<Nanos>, now: Nanos) {
        if let Some(until) = until.filter(|until| *until > now) {
            // A key without room for a pause has no permits either.
            let _ = self.pause_for(self.with_jitter(until.saturating_since(now).into()));
        }
    }

    /// Returns this wait plus the jitter.
    fn with_jitter(&self, wait: Duration) -> Duration {
        let shared = &self.shared;
        let random = shared.random.hash_one(self.state().pauses());
        // 53 random bits, as a fraction of 1.
        #[expect(clippy::cast_precision_loss)]
        let random = (random >> 11) as f64 / (1_u64 << 53) as f64;
        // The jitter is at most the wait, which is capped.
        let more = wait.as_secs_f64() * shared.options.jitter * random;
        wait.saturating_add(Duration::try_from_secs_f64(more).unwrap_or_default())
    }

    /// Pauses the limiter for exactly this time.
    pub(super) fn pause_for(&self, wait: Duration) -> Result<(), AllRefusal> {
        self.pause(wait, Pause::lasting(wait))
    }

    fn pause(&self, wait: Duration, pause: Pause) -> Result<(), AllRefusal> {
        let mut panic = FirstPanic::default();
        let paused = panic.catch(|| self.shared.limiter.pause(pause));
        // If a waker or an observer panicked, the limiter pauses nevertheless.
        if !matches!(paused, Some(Err(_))) {
            let until = self.now().saturating_add(wait.into());
            self.state().pause_until(until);
        }
        panic.resume();
        paused.unwrap_or(Ok(()))
    }

    /// Obeys the response to a call. If the response moves the route to another limiter, this
    /// handle and the call follow. A panic of user code resumes after all effects of the response.
    pub(super) fn obey(
        &mut self,
        ticket: &mut Ticket,
        status: StatusCode,
        headers: &HeaderMap,
        body: Option<&[u8]>,
    ) -> Obeyed {
        let options = &self.shared.options;
        let mut response = match body {
            Some(body) => options.reader.read_with_body(status, headers, body),
            None => options.reader.read(status, headers),
        };
        let mut panic = FirstPanic::default();
        response.refused |= panic.catch(|| options.is_refusal(status, headers)).unwrap_or_default();
        let is_success = !status.is_server_error() && !is_grpc_error(headers) && !is_grpc_head(headers);
        self.follow(ticket, Some(headers), &mut panic);
        let obeyed = self.obey_all(ticket, response, Some(is_success), &mut panic);
        panic.resume();
        obeyed
    }

    /// Follows the route to the limiter of its bucket, with a call to which a response came. The
    /// headers of the response may report the bucket.
    fn follow(&mut self, ticket: &mut Ticket, headers: Option<&HeaderMap>, panic: &mut FirstPanic) {
        let Some(scope_ref) = &self.scope_ref else { return };
        let reported = headers.and_then(|headers| scope_ref.bucket(headers, self, panic));
        let Some(bucket) = reported.or_else(|| scope_ref.moved(self)) else { return };
        // The call began at the limiter that its route has left.
        self.end_call(ticket);
        // The clock of the bucket may count from another time.
        let now = panic.catch(|| self.now()).unwrap_or(ticket.began());
        bucket.move_in(ticket, now.saturating_since(ticket.began()), panic);
        *self = bucket;
    }

    pub(super) fn with_scope_ref(self, scope_ref: ScopeRef) -> Self {
        Self { scope_ref: Some(scope_ref), ..self }
    }

    pub(super) fn without_scope_ref(self) -> Self {
        Self { scope_ref: None, ..self }
    }

    pub(super) fn is_same(&self, other: &Obey) -> bool {
        self.id() == other.id()
    }

    /// Returns the address of the limiter, which all handles to it share.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Obeys limits that were read from the response to a call.
    pub(super) fn obey_limits(&mut self, ticket: &mut Ticket, response: ResponseLimits) -> Obeyed {
        let mut panic = FirstPanic::default();
        self.follow(ticket, None, &mut panic);
        let obeyed = self.obey_all(ticket, response, None, &mut panic);
        panic.resume();
        obeyed
    }

    fn obey_all(
        &self,
        ticket: &mut Ticket,
        mut response: ResponseLimits,
        is_success: Option<bool>,
        panic: &mut FirstPanic,
    ) -> Obeyed {
        let Shared { options, members, .. } = &*self.shared;
        forget_timestamps(&mut response);
        let counts: Vec<_> = response.limits.iter().map(|limit| options.count(limit, members)).collect();
        let terms = Terms { max_pause: options.max_pause, back_off: options.back_off };
        // Without its clock, the response counts as of the beginning of its call.
        let now = panic.catch(|| self.now()).unwrap_or(ticket.began());
        let actions = self.state().learn(now, ticket, &response, &counts, is_success, terms);
        let wait = actions.pause.map(|wait| self.with_jitter(wait));
        let (paused_for, error) = self.carry_out(&actions, wait, panic);
        self.set_pace(now, &response, &counts, &actions, panic);
        // Also if this limiter did not pause: it may be closed.
        if let (Some(scope_ref), Some(wait)) = (&self.scope_ref, wait)
            && response.is_global()
        {
            scope_ref.pause_others(self, &options.clock, wait, panic);
        }
        Obeyed { answer: response, paused_for, asked_for: actions.asked, error }
    }

    fn set_pace(
        &self,
        now: Nanos,
        response: &ResponseLimits,
        counts: &[Option<Count>],
        actions: &Actions,
        panic: &mut FirstPanic,
    ) {
        let Shared { paces, members, .. } = &*self.shared;
        for pacing in paces {
            if actions.is_new_refusal {
                panic.catch(|| pacing.refused(now));
            } else if actions.is_success {
                panic.catch(|| pacing.succeeded(now));
            }
            let is_of = |count: Count| {
                let member = count.member().and_then(|at| members.get(at)).map(String::as_str);
                match pacing.pace().member() {
                    Some(name) => member == Some(name),
                    None => members.len() == 1 || member.is_none(),
                }
            };
            let reported = response.limits.iter().zip(counts).filter(|(_, count)| count.is_some_and(is_of));
            let reported = reported.filter_map(|(limit, _)| Some(limit.limit? / limit.window?.as_secs_f64()));
            // A reported limit of zero may mean that there is none, and no rate would follow it.
            let lowest = reported.filter(|reported| *reported > 0.0).reduce(f64::min);
            if let Some(reported) = lowest.filter(|_| response.trusted) {
                panic.catch(|| pacing.learn(now, reported));
            }
        }
    }

    /// Carries out the actions. Each order only lowers permits or prolongs a pause, so the actions
    /// of two responses may be carried out in any sequence. `wait` is the pause with its jitter.
    /// Returns how long the limiter pauses, and the error of the limiter.
    fn carry_out(
        &self,
        actions: &Actions,
        wait: Option<Duration>,
        panic: &mut FirstPanic,
    ) -> (Option<Duration>, Option<AllRefusal>) {
        let limiter = &self.shared.non_blocking;
        let refused = wait.and_then(|wait| panic.catch(|| self.pause_for(wait))?.err());
        let closed =
            || Some(AllRefusal::from(Refusal::Closed)).filter(|_| wait.is_some() && limiter.is_closed());
        let not_paused = refused.or_else(closed);
        let paused_for = wait.filter(|_| not_paused.is_none());
        let mut not_kept = None;
        for (count, left) in &actions.keep {
            if let Some(member) = count.member().and_then(|at| self.shared.members.get(at)) {
                let kept = panic.catch(|| limiter.keep_at_most(member, *left));
                not_kept = not_kept.or(kept.and_then(Result::err));
            }
        }
        (paused_for, not_paused.or(not_kept))
    }

    /// Ends a call that got no response.
    pub(super) fn end_call(&self, ticket: &mut Ticket) {
        self.state().end_call(ticket, |_| true);
    }

    /// Makes a reservation at the limiter.
    pub(super) fn reserve_any(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let limiter = &self.shared.non_blocking;
        match limiter.reserve(request.clone()) {
            Err(refusal) if is_zero_permits(&refusal) => Ok(AnyReservation::empty(limiter.clone())),
            reserved => reserved,
        }
    }

    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &AnyLimiter {
        &self.shared.limiter
    }

    /// Returns the number of calls in flight: calls that began and have no response yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.state().in_flight()
    }

    /// Returns whether calls are in flight or wait.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight() > 0 || self.shared.non_blocking.status().waiting > 0
    }

    /// Returns whether the limiter pauses because the server asked for it.
    pub(super) fn is_paused(&self) -> bool {
        let now = self.now();
        self.state().is_paused(now)
    }

    /// Forgets what the server reported, and ends a pause of the limiter. A [`Pace`](super::Pace)
    /// keeps its rate.
    pub fn forget(&self) {
        self.state().forget();
        self.shared.non_blocking.resume();
    }
}

/// Returns the permits of a call, or an empty grant if the call asks for none.
fn or_empty(result: Result<AllPermits, AllRefusal>) -> Result<AllPermits, AllRefusal> {
    match result {
        Err(refusal) if is_zero_permits(&refusal) => Ok(Grant::new(0, Nanos::ZERO).into()),
        result => result,
    }
}

/// Returns whether the request asked for no permits. Such a request cannot be refused.
fn is_zero_permits(refusal: &AllRefusal) -> bool {
    refusal.refusal() == Some(Refusal::ZeroPermits)
}

/// Returns whether these are the headers of a gRPC response whose status comes in the trailers. The
/// status of gRPC-Web is in the body.
fn is_grpc_head(headers: &HeaderMap) -> bool {
    let is_grpc = |kind: &HeaderValue| {
        let rest = kind.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
    };
    headers.get(http::header::CONTENT_TYPE).is_some_and(is_grpc) && !headers.contains_key("grpc-status")
}

/// Returns whether the response is an error of a gRPC server: UNKNOWN, DEADLINE_EXCEEDED,
/// RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE or DATA_LOSS. Its HTTP status is 200.
fn is_grpc_error(headers: &HeaderMap) -> bool {
    let status = headers.get("grpc-status").map(HeaderValue::as_bytes);
    matches!(status, Some(b"2" | b"4" | b"8" | b"13" | b"14" | b"15"))
}

/// Drops absolute timestamps, which a reader leaves only if the response has no `Date`. The clock
/// that they refer to is then unknown.
fn forget_timestamps(response: &mut ResponseLimits) {
    let from_now = |when: &When| matches!(when, When::In(_));
    response.retry_after = response.retry_after.filter(from_now);
    for limit in &mut response.limits {
        limit.reset = limit.reset.filter(from_now);
    }
}

impl fmt::Debug for Obey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Obey")
            .field("limiter", &self.shared.limiter)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}
