//! An option has the same effect in each call of each limiter: a priority, a maximum wait, an
//! exemption. All tests use the manual clock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::MS;
use tidegate::{
    AllOf, AllRefusal, AllRequest, KeyedAllOf, KeyedRateLimiter, ManualClock, Policy, Rate, RateLimiter,
    Refusal, Request, Statistics, TokenBucket,
};
use tokio_test::assert_pending;
use tokio_test::task::{Spawn, spawn};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The options of a call besides its cost of one.
#[derive(Clone, Copy, Default)]
struct Says {
    priority: i8,
    within: Option<Duration>,
    exempt: bool,
}

impl From<Says> for Request {
    fn from(says: Says) -> Request {
        let request = Request::permits(1).priority(says.priority);
        let request = says.within.map_or(request, |within| request.within(within));
        if says.exempt { request.exempt() } else { request }
    }
}

impl From<Says> for AllRequest<'_> {
    fn from(says: Says) -> Self {
        let request = AllRequest::new().priority(says.priority);
        let request = match says.within {
            Some(within) => request.within(within),
            None => request,
        };
        if says.exempt { request.exempt() } else { request }
    }
}

/// The time waited, or the refusal.
type Answer = Result<Duration, Refusal>;
type Run = Box<dyn Fn(Says) -> Pin<Box<dyn Future<Output = Answer>>>>;

/// How a call waits.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It returns at once.
    Try,
    /// It waits, and is polled.
    Waits,
    /// It blocks the thread.
    Blocks,
}

struct Call {
    name: &'static str,
    kind: Kind,
    run: Run,
}

/// A call that is made when its future is polled.
fn call<F, A>(name: &'static str, kind: Kind, run: impl Fn(Says) -> F + 'static) -> Call
where
    F: Future<Output = A> + 'static,
    A: Into<AnswerOf>,
{
    let run: Run = Box::new(move |says| {
        let made = run(says);
        Box::pin(async move { made.await.into().0 })
    });
    Call { name, kind, run }
}

struct AnswerOf(Answer);

impl From<Answer> for AnswerOf {
    fn from(answer: Answer) -> AnswerOf {
        AnswerOf(answer)
    }
}

impl From<Result<tidegate::Grant, Refusal>> for AnswerOf {
    fn from(answer: Result<tidegate::Grant, Refusal>) -> AnswerOf {
        AnswerOf(answer.map(|grant| grant.waited()))
    }
}

impl From<Result<tidegate::Grant, AllRefusal>> for AnswerOf {
    fn from(answer: Result<tidegate::Grant, AllRefusal>) -> AnswerOf {
        answer.map_err(|refusal| refusal.refusal().expect("all names are members")).into()
    }
}

impl From<Result<tidegate::AllPermits, AllRefusal>> for AnswerOf {
    fn from(answer: Result<tidegate::AllPermits, AllRefusal>) -> AnswerOf {
        let answer = answer.map(|permits| permits.waited());
        AnswerOf(answer.map_err(|refusal| refusal.refusal().expect("all names are members")))
    }
}

/// The limit of one permit a second, with two permits saved, that a limiter uses.
trait Control {
    fn drain(&self);
    fn debit(&self, n: u32);
    fn keep(&self, permits: u32, priority: i8);
    fn pause(&self);
    fn resume(&self);
    fn full_in(&self) -> Duration;
    fn waiting(&self) -> usize;
}

impl<P: Policy> Control for RateLimiter<P, ManualClock> {
    fn drain(&self) {
        RateLimiter::drain(self);
    }

    fn debit(&self, n: u32) {
        RateLimiter::debit(self, n);
    }

    fn keep(&self, permits: u32, priority: i8) {
        self.keep_for_priority(permits, priority);
    }

    fn pause(&self) {
        self.pause_for(HOUR);
    }

    fn resume(&self) {
        assert!(RateLimiter::resume(self), "it is paused");
    }

    fn full_in(&self) -> Duration {
        self.status().full_in
    }

    fn waiting(&self) -> usize {
        self.status().waiting
    }
}

struct World {
    clock: ManualClock,
    control: Box<dyn Control>,
    statistics: Arc<Statistics>,
    calls: Vec<Call>,
}

fn policy() -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), 2)
}

fn ample(clock: &ManualClock) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1_000_000), 1_000_000), clock.clone())
}

fn single() -> World {
    let (clock, statistics) = (ManualClock::new(), Arc::new(Statistics::new()));
    let limiter = RateLimiter::with_clock(policy(), clock.clone());
    assert!(limiter.observe(statistics.clone()));
    let of = |_| limiter.clone();
    let [a, b, c, d, e, f] = [(); 6].map(of);
    let calls = vec![
        call("try_acquire_many", Kind::Try, move |says| std::future::ready(a.try_acquire_many(says))),
        call("acquire_many", Kind::Waits, move |says| {
            let limiter = b.clone();
            async move { limiter.acquire_many(says).await }
        }),
        call("acquire_owned", Kind::Waits, move |says| c.acquire_owned(says)),
        call("blocking_acquire_many", Kind::Blocks, move |says| {
            std::future::ready(d.blocking_acquire_many(says))
        }),
        call("reserve", Kind::Waits, move |says| {
            let reservation = e.reserve(says);
            async move { reservation?.await }
        }),
        call("reserve, settle", Kind::Waits, move |says| {
            let reservation = f.reserve(says);
            async move {
                let mut reservation = reservation?;
                let waited = (&mut reservation).await?;
                reservation.settle(1);
                Ok::<_, Refusal>(waited)
            }
        }),
    ];
    World { clock, control: Box::new(limiter), statistics, calls }
}

fn keyed() -> World {
    let (clock, statistics) = (ManualClock::new(), Arc::new(Statistics::new()));
    let users: KeyedRateLimiter<u8, _, _> = KeyedRateLimiter::with_clock(policy(), 10, clock.clone());
    let users = users.observed_by(statistics.clone());
    let limiter = users.limiter(&1).expect("room");
    let [a, b, c, d] = [(); 4].map(|_| users.clone());
    let calls = vec![
        call("try_acquire_many", Kind::Try, move |says| std::future::ready(a.try_acquire_many(&1, says))),
        call("acquire_many", Kind::Waits, move |says| {
            let users = b.clone();
            async move { users.acquire_many(&1, says).await }
        }),
        call("blocking_acquire_many", Kind::Blocks, move |says| {
            std::future::ready(c.blocking_acquire_many(&1, says))
        }),
        call("reserve", Kind::Waits, move |says| {
            let reservation = d.reserve(&1, says);
            async move { reservation?.await }
        }),
    ];
    World { clock, control: Box::new(limiter), statistics, calls }
}

fn calls_of(all: impl Fn() -> AllOf<ManualClock> + Clone + 'static) -> Vec<Call> {
    let [a, b, c, d, e] = [(); 5].map(|()| all.clone());
    vec![
        call("try_acquire_many", Kind::Try, move |says| std::future::ready(a().try_acquire_many(says))),
        call("acquire_many", Kind::Waits, move |says| b().acquire_many(says)),
        call("blocking_acquire_many", Kind::Blocks, move |says| {
            std::future::ready(c().blocking_acquire_many(says))
        }),
        call("reserve", Kind::Waits, move |says| {
            let reservation = d().reserve(says);
            async move { reservation?.await }
        }),
        call("reserve, settle", Kind::Waits, move |says| {
            let reservation = e().reserve(says);
            async move {
                let mut reservation = reservation?;
                let waited = (&mut reservation).await?;
                reservation.settle([("a", 1)])?;
                Ok::<_, AllRefusal>(waited)
            }
        }),
    ]
}

fn several() -> World {
    let (clock, statistics) = (ManualClock::new(), Arc::new(Statistics::new()));
    let limiter = RateLimiter::with_clock(policy(), clock.clone());
    let all = AllOf::new("a", &limiter).with("b", &ample(&clock));
    assert!(all.observe(statistics.clone()));
    let calls = calls_of(move || all.clone());
    World { clock, control: Box::new(limiter), statistics, calls }
}

fn several_of_a_key() -> World {
    let (clock, statistics) = (ManualClock::new(), Arc::new(Statistics::new()));
    let users: KeyedRateLimiter<u8, _, _> = KeyedRateLimiter::with_clock(policy(), 10, clock.clone());
    let limiter = users.limiter(&1).expect("room");
    let api = KeyedAllOf::<u8, _>::new("a", &users).with("b", &ample(&clock));
    let api = api.observed_by(statistics.clone());
    let [a, b, c] = [(); 3].map(|()| api.clone());
    let mut calls = calls_of(move || api.limiter(&1).expect("room"));
    calls.extend([
        call("of a key: try_acquire_many", Kind::Try, move |says| {
            std::future::ready(a.try_acquire_many(&1, says))
        }),
        call("of a key: acquire_many", Kind::Waits, move |says| {
            let api = b.clone();
            async move { api.acquire_many(&1, says).await }
        }),
        call("of a key: reserve", Kind::Waits, move |says| {
            let reservation = c.reserve(&1, says);
            async move { reservation?.await }
        }),
    ]);
    World { clock, control: Box::new(limiter), statistics, calls }
}

/// Runs a test with each call of each limiter, each in a new world.
fn each_call(test: impl Fn(&World, &Call, &str)) {
    for (limiter, world) in [
        ("RateLimiter", single as fn() -> World),
        ("KeyedRateLimiter", keyed),
        ("AllOf", several),
        ("KeyedAllOf", several_of_a_key),
    ] {
        for index in 0..world().calls.len() {
            let world = world();
            let call = &world.calls[index];
            test(&world, call, &format!("{limiter}: {}", call.name));
        }
    }
}

fn begun(call: &Call, says: Says) -> Spawn<Pin<Box<dyn Future<Output = Answer>>>> {
    spawn((call.run)(says))
}

#[test]
fn an_exempt_call_passes_at_once_and_takes_nothing() {
    each_call(|world, call, name| {
        world.control.drain();
        world.control.pause();
        let says = Says { exempt: true, ..Says::default() };
        assert_eq!(begun(call, says).poll(), Poll::Ready(Ok(Duration::ZERO)), "{name}");
        world.control.resume();
        assert_eq!((world.control.full_in(), world.control.waiting()), (2 * SECOND, 0), "{name}");
        let counts = world.statistics.snapshot();
        assert_eq!((counts.exempted, counts.granted, counts.refused()), (1, 0, 0), "{name}");
    });
}

#[test]
fn a_call_that_cannot_be_served_within_its_time_is_refused_at_once() {
    each_call(|world, call, name| {
        world.control.drain();
        let says = Says { within: Some(400 * MS), ..Says::default() };
        let answer = begun(call, says).poll();
        // A `try_` is accepted once the permit is available. Any other call is accepted earlier by
        // its maximum wait.
        let retry_after = if call.kind == Kind::Try { SECOND } else { 600 * MS };
        let limited = Refusal::Limited { retry_after: retry_after.into() };
        assert_eq!(answer, Poll::Ready(Err(limited)), "{name}");
        assert_eq!((world.control.full_in(), world.control.waiting()), (2 * SECOND, 0), "{name}");
        assert_eq!(world.statistics.snapshot().limited, 1, "{name}");
    });
}

#[test]
fn a_call_that_can_be_served_within_its_time_waits() {
    each_call(|world, call, name| {
        if call.kind != Kind::Waits {
            return;
        }
        world.control.drain();
        let says = Says { within: Some(SECOND), ..Says::default() };
        let mut wait = begun(call, says);
        assert_pending!(wait.poll(), "{name}");
        world.clock.advance(SECOND);
        assert!(wait.is_woken() || name.contains("reserve"), "{name}");
        assert_eq!(wait.poll(), Poll::Ready(Ok(SECOND)), "{name}");
        assert_eq!(world.statistics.snapshot().granted, 1, "{name}");
    });
}

#[test]
fn permits_kept_for_a_priority_are_for_each_call_of_that_priority() {
    each_call(|world, call, name| {
        world.control.debit(1);
        world.control.keep(1, 3);
        if call.kind != Kind::Blocks {
            let answer = begun(call, Says { priority: 2, ..Says::default() }).poll();
            assert!(!matches!(answer, Poll::Ready(Ok(_))), "{name}: the permit is kept");
        }
        let answer = begun(call, Says { priority: 3, ..Says::default() }).poll();
        assert_eq!(answer, Poll::Ready(Ok(Duration::ZERO)), "{name}");
    });
}

#[test]
fn a_call_of_a_higher_priority_goes_first() {
    each_call(|world, call, name| {
        if call.kind == Kind::Blocks {
            return;
        }
        world.control.drain();
        let waits = |call: &&Call| call.kind == Kind::Waits;
        let first = world.calls.iter().find(waits).expect("a call that waits");
        let mut plain = begun(first, Says::default());
        assert_pending!(plain.poll());
        let mut important = begun(call, Says { priority: 1, ..Says::default() });
        if call.kind == Kind::Try {
            let limited = Refusal::Limited { retry_after: SECOND.into() };
            assert_eq!(important.poll(), Poll::Ready(Err(limited)), "{name}: the waiter is not counted");
            return;
        }
        assert_pending!(important.poll(), "{name}");
        world.clock.advance(SECOND);
        assert_pending!(plain.poll(), "{name}");
        assert_eq!(important.poll(), Poll::Ready(Ok(SECOND)), "{name}");
        world.clock.advance(SECOND);
        assert_eq!(plain.poll(), Poll::Ready(Ok(2 * SECOND)), "{name}");
    });
}

#[test]
fn an_exempt_reservation_charges_nothing_when_it_is_settled() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy(), clock.clone());
    let all = AllOf::new("a", &limiter).with("b", &ample(&clock));
    let full = || limiter.status().full_in;
    for claims in [false, true] {
        let mut reservation = limiter.reserve(Request::permits(1).exempt()).expect("exempt");
        assert_eq!(claims && reservation.claim(), claims);
        reservation.settle(2);
        assert_eq!(full(), Duration::ZERO, "RateLimiter, claimed: {claims}");
        let mut reservation = all.reserve(AllRequest::new().exempt()).expect("exempt");
        assert_eq!(claims && reservation.claim(), claims);
        reservation.settle([("a", 2)]).expect("a member");
        assert_eq!(full(), Duration::ZERO, "AllOf, claimed: {claims}");
    }
}
