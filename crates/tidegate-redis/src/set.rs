//! A set of limits under one tag: one script call decides about all of them.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{
    AllRefusal, AllRequest, AllStatus, AnyLimiter, Clock, DefaultClock, Left, Nanos, PolicyConfig, Refusal,
    Status, TokioClock,
};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::counted::Counted;
use crate::key;
use crate::known_pause::PauseOfKeys;
use crate::observe::Observers;
use crate::script::{
    Answer, GivenBack, LONGEST_WAIT, Operation, Part, Reply, ReserveRequest, Script, StateReport, command,
    reserve,
};
use crate::share::LastBooking;
use crate::store::{Away, Deadline, Store, Unsent, WhileAway};
use crate::terms::Terms;

/// One limit of a set.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) config: PolicyConfig,
}

/// Limits without a tag, which the sets of all tags share.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) store: Store,
    pub(crate) script: Arc<Script>,
    pub(crate) members: Arc<[Member]>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) is_leased: bool,
}

impl Prepared {
    /// The set of a tag.
    pub(crate) fn set(&self, tag: String) -> Set {
        let Prepared { store, script, members, observers, .. } = self;
        let key = |member: &Member| key::of(store.prefix(), &tag, &member.name, &member.terms.ending);
        let keys = members.iter().map(key).collect();
        Set {
            known_pause: store.known_pause(&keys),
            keys,
            store: store.clone(),
            script: script.clone(),
            tag,
            observers: observers.clone(),
            members: members.clone(),
            giving_way: Arc::default(),
            shadow: AtomicBool::new(false),
            closed: watch::Sender::new(false),
            clock: DefaultClock::new(),
            home: Handle::try_current().ok().filter(|_| reads_runtime_time()),
        }
    }
}

/// Limits under one tag.
pub(crate) struct Set {
    pub(crate) store: Store,
    pub(crate) script: Arc<Script>,
    pub(crate) tag: String,
    pub(crate) observers: Arc<Observers>,
    pub(crate) members: Arc<[Member]>,
    /// The key of each member.
    keys: Arc<[String]>,
    /// The number of calls without a reply that give way to the calls of others.
    giving_way: Arc<AtomicUsize>,
    /// The pause that this process knows of, for the time that the store is away.
    pub(crate) known_pause: PauseOfKeys,
    pub(crate) shadow: AtomicBool,
    pub(crate) closed: watch::Sender<bool>,
    pub(crate) clock: DefaultClock,
    /// The runtime in which the limiter was built, if its time can be paused.
    home: Option<Handle>,
}

/// The permits of one member, and the maximum.
pub(crate) type Cost = (u64, u64);

/// For each member, its cost.
pub(crate) type Costs = Vec<Cost>;

/// Returns the costs of exactly these permits of each member.
pub(crate) fn exactly(permits: impl IntoIterator<Item = u64>) -> Costs {
    permits.into_iter().map(|n| (n, n)).collect()
}

impl Set {
    /// The time of the tasks that wait, also on the store's thread.
    pub(crate) fn now(&self) -> Nanos {
        // A thread that is ending can enter no runtime.
        let is_over = || Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        let _home = self.home.as_ref().filter(|_| !is_over()).map(Handle::enter);
        self.clock.now()
    }

    /// Returns whether the server of the limits failed, as far as this process knows.
    pub(crate) fn is_failing(&self) -> bool {
        self.store.is_failing(&self.keys[0])
    }

    /// The time for which calls to the server of the limits remain suspended.
    pub(crate) fn rest(&self) -> Duration {
        self.store.rest(&self.keys[0])
    }

    /// The cost of a request at each member.
    pub(crate) fn costs(&self, request: &AllRequest<'_>, others: (u64, u64)) -> Result<Costs, AllRefusal> {
        let mut costs = vec![others; self.members.len()];
        for (name, n) in request.costs() {
            costs[self.find(name)?] = (n.into(), n.into());
        }
        Ok(costs)
    }

    /// The used permits of each member. A member that the request does not name has used all
    /// reserved permits.
    pub(crate) fn used(&self, mut reserved: Vec<u64>, used: &AllRequest<'_>) -> Result<Vec<u64>, AllRefusal> {
        if let Some(others) = used.others() {
            reserved.fill(others.into());
        }
        for (name, n) in used.costs() {
            reserved[self.find(name)?] = n.into();
        }
        Ok(reserved)
    }

    pub(crate) fn find(&self, name: &str) -> Result<usize, AllRefusal> {
        self.members.iter().position(|member| member.name == name).ok_or_else(|| AllRefusal::NoMember {
            name: name.into(),
            members: self.members.iter().map(|member| member.name.as_str().into()).collect(),
        })
    }

    /// Refuses a request that can never be granted.
    pub(crate) fn check(&self, costs: &Costs) -> Result<(), AllRefusal> {
        if *self.closed.borrow() {
            return Err(Refusal::Closed.into());
        }
        if costs.iter().all(|(n, _)| *n == 0) {
            // In one process the first member refuses it.
            return Err(AllRefusal::from_member(self.members[0].name.as_str(), Refusal::ZeroPermits));
        }
        for (member, (n, _)) in self.members.iter().zip(costs) {
            // A single permit may be due under other terms.
            if let Some(largest) = member.terms.largest
                && *n > largest.max(1)
            {
                let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
                let refusal = Refusal::ExceedsLimit { requested: small(*n), limit: small(largest) };
                return Err(AllRefusal::from_member(member.name.as_str(), refusal));
            }
        }
        Ok(())
    }

    /// Calls a script. Its reply, or why there is none, is passed to a function on the store's
    /// thread.
    fn send(
        &self,
        operation: Operation,
        costs: &[Cost],
        deadline: Deadline,
        callback: impl FnOnce(Result<Reply, Away>) + Send + 'static,
    ) -> Option<Unsent> {
        let cmd = command(&self.script, operation, self.store.time(), &self.parts(costs));
        let limits = self.members.len();
        let pause = match operation {
            Operation::Pause { span, .. } => Some(self.known_pause.begin(span)),
            Operation::Resume => Some(self.known_pause.end()),
            Operation::Reset => Some(self.known_pause.keep()),
            _ => None,
        };
        let reports = pause.is_none() || matches!(operation, Operation::Reset);
        let known = reports.then(|| self.known_pause.clone());
        let pauses = pause.is_none().then(|| self.known_pause.messages());
        self.carry_out(
            cmd,
            deadline,
            move |value| Reply::read(value, limits),
            move |reply| {
                drop(pause);
                if let (Some(known), Ok(reply)) = (known, &reply) {
                    known.reported(pauses.unwrap_or_else(|| known.messages()), reply.paused_for());
                }
                callback(reply);
            },
        )
    }

    /// A call that takes bookings back, and then decides requests in their order.
    pub(crate) fn reserve(&self, given_back: &[GivenBack<'_>], requests: &[ReserveRequest]) -> Cmd {
        if !requests.is_empty() {
            self.store.note_permit_request();
        }
        reserve(&self.script, self.store.time(), &self.parts(&[]), given_back, requests)
    }

    /// Makes such a call with `requests` requests.
    pub(crate) fn decide(
        &self,
        cmd: Cmd,
        requests: usize,
        deadline: Deadline,
        callback: impl FnOnce(Result<Vec<Reply>, Away>) + Send + 'static,
    ) -> Option<Unsent> {
        let limits = self.members.len();
        self.carry_out(cmd, deadline, move |value| Reply::read_all(value, requests, limits), callback)
    }

    fn parts<'a>(&'a self, costs: &[Cost]) -> Vec<Part<'a>> {
        let part = |(i, member): (usize, &'a Member)| {
            let permits = costs.get(i).map_or(0, |(n, _)| *n);
            Part { key: &self.keys[i], terms: &member.terms, permits }
        };
        self.members.iter().enumerate().map(part).collect()
    }

    fn carry_out<T>(
        &self,
        cmd: Cmd,
        mut deadline: Deadline,
        read: impl FnOnce(Value) -> Option<T> + Send + 'static,
        callback: impl FnOnce(Result<T, Away>) + Send + 'static,
    ) -> Option<Unsent> {
        // Relaxed: calls of threads that do not wait for each other have no order.
        deadline.gives_way |= self.giving_way.load(Ordering::Relaxed) > 0;
        let giving_way = deadline.gives_way.then(|| Counted::new(self.giving_way.clone()));
        let store = self.store.clone();
        self.store.send(cmd, self.script.clone(), deadline, move |outcome| {
            drop(giving_way);
            let outcome = outcome.and_then(|value| read(value).ok_or_else(|| store.note_invalid_reply()));
            callback(outcome);
        })
    }

    /// Calls a script, without waiting for the reply.
    pub(crate) fn send_detached(&self, operation: Operation, costs: &[Cost]) {
        drop(self.send_locked(operation, costs));
    }

    /// Like [`send_detached`](Set::send_detached), for a caller that holds a lock.
    pub(crate) fn send_locked(&self, operation: Operation, costs: &[Cost]) -> Option<Unsent> {
        let refunds = matches!(operation, Operation::Refund { .. });
        let deadline = if refunds { Deadline::MUST_SEND } else { Deadline::NONE };
        self.send(operation, costs, deadline, self.note_lost(refunds.into()))
    }

    /// Takes back bookings, in this order, without waiting for the reply.
    pub(crate) fn give_back(&self, bookings: &[GivenBack<'_>]) {
        let cmd = self.reserve(bookings, &[]);
        drop(self.decide(cmd, 0, Deadline::MUST_SEND, self.note_lost(bookings.len())));
    }

    /// Ends the pause, without waiting for the reply, after which `ended` is called. The observers
    /// are notified if there was a pause.
    pub(crate) fn resume_detached(&self, ended: impl FnOnce() + Send + 'static) {
        let (note_lost, observers) = (self.note_lost(0), self.observers.clone());
        drop(self.send(Operation::Resume, &[], Deadline::NONE, move |reply| {
            ended();
            if reply.as_ref().is_ok_and(Reply::was_paused) {
                observers.resumed();
            }
            note_lost(reply);
        }));
    }

    /// Notes that a message was lost which gives back so many grants, unless it is carried out.
    fn note_lost<T>(&self, refunds: usize) -> impl FnOnce(Result<T, Away>) + Send + 'static {
        let store = self.store.clone();
        move |outcome| {
            if let Err(away) = outcome {
                store.note_lost(refunds, away);
            }
        }
    }

    /// Calls a script, and returns its reply.
    pub(crate) async fn ask(&self, operation: Operation, costs: &[Cost]) -> Result<Reply, Away> {
        let (sender, receiver) = oneshot::channel();
        let deadline = Deadline::of(self.store.timeout());
        drop(self.send(operation, costs, deadline, move |reply| _ = sender.send(reply)));
        receiver.await.unwrap_or(Err(Away::ENDED))
    }

    /// The refusal that a reply reports.
    pub(crate) fn refusal(&self, reply: &Reply, longest: Duration) -> AllRefusal {
        let limit = reply.tightest.unwrap_or(0);
        // A limit that the request does not use pauses nothing, and bounds no wait.
        let paused_for = reply.request_paused_for();
        let used = self.members.iter().zip(&reply.permits).filter(|(_, n)| **n > 0);
        let bounds = used.filter_map(|(member, _)| member.terms.longest);
        let longest = bounds.fold(longest.min(LONGEST_WAIT), Duration::min);
        let retry_after = match reply.wait {
            Duration::MAX => Nanos::MAX,
            _ if paused_for == Duration::MAX => Nanos::MAX,
            wait => Nanos::from_duration(wait.saturating_sub(longest)),
        };
        if paused_for > Duration::ZERO {
            return Refusal::Paused { retry_after }.into();
        }
        let refusal = Refusal::Limited { retry_after };
        match self.members.get(limit) {
            Some(member) => AllRefusal::from_member(member.name.as_str(), refusal),
            None => refusal.into(),
        }
    }

    /// Returns how to decide a request without the store, which has booked permits for this
    /// process.
    pub(crate) fn fallback(&self, undecided: Away, booked: &dyn Fn() -> LastBooking) -> Fallback {
        // A wrong configuration is never hidden.
        if undecided == Away::Misconfigured {
            return Fallback::Refuse(undecided.refusal().into());
        }
        if self.shadow.load(Ordering::Relaxed) {
            return Fallback::Grant;
        }
        let while_away = self.store.while_away();
        if let Some(refusal) = self.known_pause.refusal() {
            return match while_away {
                WhileAway::Closed | WhileAway::Wait => Fallback::Refuse(refusal),
                WhileAway::Open | WhileAway::Share | WhileAway::ShareOf(_) => Fallback::Paused(refusal),
            };
        }
        if while_away == WhileAway::Open {
            return Fallback::Grant;
        }
        let limits = self.members.iter().map(|member| (member.name.as_str(), &member.config));
        match self.store.share(&self.tag, &self.keys[0], limits, booked) {
            Some(Ok(share)) => Fallback::Share(share.into()),
            Some(Err(refusal)) => Fallback::Refuse(self.by_share(refusal, undecided.rest())),
            None => Fallback::Refuse(undecided.refusal().into()),
        }
    }

    /// Converts the refusal of a share to a refusal of the limits. A request that is too large for
    /// the share may fit the limit, and the store can be asked again after its rest.
    pub(crate) fn by_share(&self, refusal: AllRefusal, rest: Duration) -> AllRefusal {
        match refusal.refusal() {
            Some(
                Refusal::ExceedsLimit { .. } | Refusal::TooManyKeys { .. } | Refusal::Unavailable { .. },
            ) => Away::For(rest).refusal().into(),
            _ => refusal.as_degraded(),
        }
    }

    /// Logs a grant: its permits are used.
    pub(crate) fn log_grant(&self, reply: &Reply) {
        if reply.answer == Answer::Done {
            for (key, permits) in self.keys.iter().zip(&reply.permits) {
                self.store.log_grant(key, reply.due, *permits);
            }
        }
    }

    /// The name of the tightest member of the request, and what a grant left of it, if its reply
    /// reports that.
    pub(crate) fn tightest(&self, reply: &Reply) -> Option<(&str, Left)> {
        let Reply { permits, limits, wait, .. } = reply;
        let asked = self.members.iter().zip(limits).zip(permits).filter(|(_, permits)| **permits > 0);
        let left = asked.map(|((member, report), _)| (member.name.as_str(), left(member, report, *wait)));
        // Two limits are compared by the remaining part, without a division.
        left.reduce(|a, b| {
            let part = |of: &Left, other: &Left| u128::from(of.available) * u128::from(other.limit);
            if part(&b.1, &a.1) < part(&a.1, &b.1) { b } else { a }
        })
    }

    /// The state in a reply, after `passed` of its time has passed. It takes no lock.
    pub(crate) fn state_of(&self, reply: &Reply, passed: Duration, waiting: usize) -> AllStatus {
        let paused_for = reply.paused_for();
        let members = self.members.iter().zip(&reply.limits).map(|(member, report)| {
            let status = Status::from(left(member, report, passed)).rate(member.terms.rate);
            (member.name.as_str(), status.paused_for(less(report.paused_for, passed)))
        });
        AllStatus::new(members).waiting(waiting).paused_for(less(paused_for, passed))
    }
}

/// Returns whether the default clock reads the time of a runtime, which tests may pause. Otherwise
/// a reading need not enter the runtime, which would take longer than the reading.
fn reads_runtime_time() -> bool {
    TypeId::of::<DefaultClock>() == TypeId::of::<TokioClock>()
}

/// Returns the remaining permits of a limit, after `passed` of the reported time has passed.
fn left(member: &Member, report: &StateReport, passed: Duration) -> Left {
    let (next_in, full_in) = (less(report.next_in, passed), less(report.full_in, passed));
    let available = match passed > Duration::ZERO && next_in == Duration::ZERO {
        // At least one permit.
        true => report.available.max(report.other).max(1),
        false => report.available,
    };
    Left::new(member.terms.limit, available).next_in(next_in).full_in(full_in)
}

/// The rest of a duration; [`Duration::MAX`] does not end.
fn less(span: Duration, passed: Duration) -> Duration {
    if span == Duration::MAX { span } else { span.saturating_sub(passed) }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.config)
    }
}

/// A decision without the store.
pub(crate) enum Fallback {
    Share(AnyLimiter),
    /// Every request is granted.
    Grant,
    /// Every request is refused.
    Refuse(AllRefusal),
    /// A pause that this process knows of: requests that may wait for its end ask again then, and
    /// the others are refused.
    Paused(AllRefusal),
}
