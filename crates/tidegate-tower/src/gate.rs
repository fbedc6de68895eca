//! [`Gate`]: the requests of a layer to its limiter; and [`PendingAdmission`], the wait for a
//! decision.
//!
//! A [`PendingAdmission`] is polled until the request is admitted or refused.
//!
//! | state | holds | next |
//! |---|---|---|
//! | `New` | nothing | decided at once, `Key`, `Acquire` or `Reserve` |
//! | `Key` | the future of the key | like `New`, with the key |
//! | `Acquire` | a position in the queue, from its first poll on | decided |
//! | `Reserve` | a position in the queue | decided |
//! | `Decided` | nothing: the permits are in the [`Admission`] | |
//!
//! Dropping it in any state drops the position in the queue, without a trace.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::{AcquireAny, AllPermits, AllRefusal, AllStatus, AnyReservation, Refusal};

use crate::hold::Hold;
use crate::key::Key;
use crate::limit::{Ask, Limit, is_zero_permits};
use crate::refused::Refused;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// A function of the user.
pub(crate) type Function<V, T> = Arc<dyn Fn(&V) -> T + Send + Sync>;

/// What a layer asks its limiter for each request. The functions see a `V` of the request.
pub(crate) struct Gate<L: Limit, V> {
    pub(crate) limit: L,
    pub(crate) key: KeyOf<L::Key, V>,
    pub(crate) ask: Option<Function<V, L::Ask>>,
    pub(crate) exempt: Option<Function<V, bool>>,
    pub(crate) mode: Option<Mode>,
    pub(crate) name: Option<Arc<str>>,
}

pub(crate) enum KeyOf<K, V> {
    Now(Function<V, Key<K>>),
    Later(Function<V, BoxFuture<Key<K>>>),
}

/// What happens to a request if its permits are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Refuse,
    Wait,
    WaitAtMost(Duration),
    Shadow,
}

/// The permits of an admitted request, and what the layer reports about them.
#[derive(Debug, Default)]
pub struct Admission {
    pub(crate) hold: Hold,
    /// The state of the limits, from the decision.
    pub(crate) state: Option<AllStatus>,
    /// The refusal that shadow mode did not enforce.
    pub(crate) shadowed: Option<Refused>,
}

/// What a request needs besides permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The state of the limits, for headers.
    pub(crate) state: bool,
    /// Permits that can be settled.
    pub(crate) settles: bool,
    pub(crate) mode: Mode,
}

/// A refusal, with the state of the limits if there is a state to report.
#[derive(Debug)]
pub struct RefusalWithState {
    pub(crate) refused: Refused,
    pub(crate) state: Option<AllStatus>,
}

/// The key of an exempt request is dropped, because to ask for the state of the key's limits could
/// add the key to a table.
pub(crate) enum PendingAdmission<L: Limit> {
    New,
    Key(BoxFuture<Key<L::Key>>),
    Acquire(Option<L::Key>, AcquireAny),
    Reserve(Option<L::Key>, AnyReservation),
    Decided,
}

impl<L: Limit> PendingAdmission<L> {
    /// Polls for the decision about a request.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after it decided.
    pub(crate) fn poll<V>(
        &mut self,
        gate: &Gate<L, V>,
        needs: Needs,
        request: &V,
        context: &mut Context<'_>,
    ) -> Poll<Result<Admission, RefusalWithState>> {
        loop {
            let (key, answer) = match self {
                PendingAdmission::New => {
                    if gate.exempt.as_ref().is_some_and(|exempt| exempt(request)) {
                        *self = PendingAdmission::Decided;
                        return Poll::Ready(Ok(Admission::default()));
                    }
                    match &gate.key {
                        KeyOf::Later(key) => {
                            *self = PendingAdmission::Key(key(request));
                            continue;
                        }
                        KeyOf::Now(key) => match self.begin(gate, needs, request, key(request)) {
                            Some(decision) => return Poll::Ready(decision),
                            None => continue,
                        },
                    }
                }
                PendingAdmission::Key(key) => {
                    let key = ready!(key.as_mut().poll(context));
                    match self.begin(gate, needs, request, key) {
                        Some(decision) => return Poll::Ready(decision),
                        None => continue,
                    }
                }
                PendingAdmission::Acquire(key, wait) => {
                    let answer = ready!(Pin::new(wait).poll(context));
                    (key, answer.map(granted))
                }
                PendingAdmission::Reserve(key, reservation) => {
                    let answer = ready!(Pin::new(&mut *reservation).poll(context));
                    let (left, is_degraded) = (reservation.left(), reservation.is_degraded());
                    (key, answer.map(|_| Granted { hold: Hold::default(), left, is_degraded }))
                }
                PendingAdmission::Decided => panic!("polled after it was ready"),
            };
            let mut decision = gate.decide(needs, key.as_ref(), answer);
            // A request that passes in shadow mode without permits has no estimate.
            if let PendingAdmission::Reserve(_, reservation) =
                std::mem::replace(self, PendingAdmission::Decided)
                && let Ok(admission) = &mut decision
                && admission.shadowed.is_none()
            {
                admission.hold = Hold::estimate(reservation);
            }
            return Poll::Ready(decision);
        }
    }

    /// Decides about a request of this key at once, or begins to wait.
    fn begin<V>(
        &mut self,
        gate: &Gate<L, V>,
        needs: Needs,
        request: &V,
        key: Key<L::Key>,
    ) -> Option<Result<Admission, RefusalWithState>> {
        // If a function of the user panics, the request is over.
        *self = PendingAdmission::Decided;
        let key = match key {
            Key::Of(key) => key,
            Key::Unlimited => return Some(Ok(Admission::default())),
            Key::Refused(status) => {
                let refused = Refused::no_key(status).named(gate.name.clone(), false);
                if needs.mode == Mode::Shadow {
                    return Some(Ok(Admission { shadowed: Some(refused), ..Admission::default() }));
                }
                return Some(Err(RefusalWithState { refused, state: None }));
            }
        };
        let mut ask = gate.ask.as_ref().map(|ask| ask(request)).unwrap_or_default();
        if needs.state {
            ask = ask.with_left();
        }
        let is_exempt = ask.is_exempt();
        let limited = |key| Some(key).filter(|_| !is_exempt);
        match needs.mode {
            Mode::WaitAtMost(within) => ask = ask.within(within),
            // A reservation that is refused unless it is due now.
            Mode::Refuse | Mode::Shadow if needs.settles => ask = ask.within(Duration::ZERO),
            Mode::Refuse | Mode::Shadow => {
                let answer = gate.limit.acquire_now(&key, &ask);
                *self = PendingAdmission::Acquire(limited(key), answer);
                return None;
            }
            Mode::Wait => {}
        }
        if needs.settles {
            match gate.limit.reserve(&key, &ask) {
                Ok(reservation) => *self = PendingAdmission::Reserve(limited(key), reservation),
                Err(refusal) => return Some(gate.decide(needs, limited(key).as_ref(), Err(refusal))),
            }
        } else {
            let wait = gate.limit.acquire(&key, &ask);
            *self = PendingAdmission::Acquire(limited(key), wait);
        }
        None
    }
}

/// The hold of a granted call, and the state that the call left.
struct Granted {
    hold: Hold,
    left: Option<AllStatus>,
    is_degraded: bool,
}

fn granted(permits: AllPermits) -> Granted {
    let (left, is_degraded) = (permits.left().cloned(), permits.is_degraded());
    Granted { hold: Hold::permits(permits), left, is_degraded }
}

impl<L: Limit, V> Gate<L, V> {
    fn decide(
        &self,
        needs: Needs,
        key: Option<&L::Key>,
        answer: Result<Granted, AllRefusal>,
    ) -> Result<Admission, RefusalWithState> {
        // The state of the limits is unknown if their store did not reply.
        let state = |left: Option<AllStatus>, is_degraded: bool| match left {
            _ if !needs.state => None,
            None if is_degraded => None,
            left => left.or_else(|| self.limit.status(key?)),
        };
        match answer {
            Ok(Granted { hold, left, is_degraded }) => {
                Ok(Admission { hold, state: state(left, is_degraded), shadowed: None })
            }
            Err(refusal) if is_zero_permits(&refusal) => Ok(Admission::default()),
            Err(refusal) => {
                let (left, is_degraded) = (refusal.left().cloned(), refusal.is_degraded());
                // A key without room has no limit to report.
                let has_limit = !matches!(refusal.refusal(), Some(Refusal::TooManyKeys { .. }));
                let members = || match &left {
                    Some(left) => Some(left.members.len()),
                    None => self.limit.members(key?),
                };
                let is_only = refusal.member().is_some() && self.name.is_some() && members() == Some(1);
                // A single limiter names no member either. It mostly refuses because it is limited,
                // which several limits do not do together.
                let may_be_common = refusal.member().is_none() && !is_limited(&refusal);
                let is_common = may_be_common && members().is_some_and(|members| members > 1);
                let refused = Refused::by_limit(refusal).named(self.name.clone(), is_only).common(is_common);
                if needs.mode == Mode::Shadow {
                    return Ok(Admission { shadowed: Some(refused), ..Admission::default() });
                }
                Err(RefusalWithState {
                    refused,
                    state: has_limit.then(|| state(left, is_degraded)).flatten(),
                })
            }
        }
    }
}

fn is_limited(refusal: &AllRefusal) -> bool {
    matches!(refusal.refusal(), Some(Refusal::Limited { .. }))
}

impl<K, V> Clone for KeyOf<K, V> {
    fn clone(&self) -> Self {
        match self {
            KeyOf::Now(key) => KeyOf::Now(key.clone()),
            KeyOf::Later(key) => KeyOf::Later(key.clone()),
        }
    }
}

impl<L: Limit, V> Clone for Gate<L, V> {
    fn clone(&self) -> Self {
        let Gate { limit, key, ask, exempt, mode, name } = self;
        Gate {
            limit: limit.clone(),
            key: key.clone(),
            ask: ask.clone(),
            exempt: exempt.clone(),
            mode: *mode,
            name: name.clone(),
        }
    }
}

impl<L: Limit, V> fmt::Debug for Gate<L, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("name", &self.name).field("mode", &self.mode).finish_non_exhaustive()
    }
}
