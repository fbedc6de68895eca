//! The same calls in one process and over a store: the results are equal, word for word.
//!
//! Time is tokio's paused time, for limiters in this process, for waits, and for scripts, which
//! take it as an argument. It moves only where a test advances it: the tests run outside tasks, and
//! blocking calls do not let the runtime become idle.

mod behaviours;
mod leased;
mod random;

use std::time::Duration;

use tidegate::policy::{AnyPolicy, Policy};
use tidegate::{
    AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyKeyed, AnyLimiter, AnyReservation,
    KeyedRateLimiter, RateLimiter, Request,
};
use tokio::runtime::Runtime;
use tokio_test::task::Spawn;

use crate::script_tests::START;
use crate::script_tests::support::Server;
use crate::store::Store;

/// The name of a limiter without members.
const NAME: &str = "limit";

/// Where limiters are built, and the results of all calls.
pub(crate) struct World {
    runtime: Runtime,
    began: tokio::time::Instant,
    store: Option<(Store, Server)>,
    /// Whether limiters lease.
    is_leased: bool,
    /// For the limiter that was built last.
    set_shadow: Option<Box<dyn Fn(bool)>>,
    tags: u32,
    waits: Vec<Option<Waits>>,
    pub(crate) log: Vec<String>,
}

enum Waits {
    Permits(Spawn<tidegate::AcquireAny>),
    Reservation(Spawn<AnyReservation>),
}

impl World {
    pub(crate) fn in_process() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let context = runtime.enter();
        let began = tokio::time::Instant::now();
        drop(context);
        World {
            runtime,
            began,
            store: None,
            is_leased: false,
            set_shadow: None,
            tags: 0,
            waits: Vec::new(),
            log: Vec::new(),
        }
    }

    /// `None`, with a message, if no server is installed.
    pub(crate) fn over_a_store() -> Option<World> {
        let server = Server::start()?;
        let mut world = World::in_process();
        let store = Store::builder(server.url()).timeout(Duration::from_secs(60)).open().expect("a store");
        let (began, handle) = (world.began, world.runtime.handle().clone());
        store.set_tasks(handle.clone());
        store.set_time(move || {
            let _context = handle.enter();
            START + u64::try_from(began.elapsed().as_micros()).expect("a time")
        });
        world.store = Some((store, server));
        Some(world)
    }

    pub(crate) fn limiter(&mut self, limits: &[(&str, &str)]) -> AnyLimiter {
        self.tags += 1;
        let _context = self.runtime.enter();
        let limits = limits.iter().map(|(name, line)| (*name, *line));
        let Some((store, _)) = &self.store else {
            let since = Duration::from_micros(START) + self.began.elapsed();
            let limiter = |line: &str| {
                let policy: AnyPolicy = line.parse().expect("a policy");
                RateLimiter::new(policy.with_epoch(since))
            };
            if limits.len() == 1 {
                let limiter = limits.map(|(_, line)| limiter(line)).next().expect("a limit");
                let shadowed = limiter.clone();
                self.set_shadow = Some(Box::new(move |is_shadow| shadowed.set_shadow(is_shadow)));
                return limiter.into();
            }
            let mut all: Option<AllOf> = None;
            for (name, line) in limits {
                let limiter = limiter(line);
                all = Some(match all {
                    None => AllOf::new(name, &limiter),
                    Some(all) => all.with(name, &limiter),
                });
            }
            return all.expect("a limit").into();
        };
        let builder = store.limiter(format!("{}", self.tags));
        let builder = limits.fold(builder, |builder, (name, line)| builder.limit(name, line));
        let builder = if self.is_leased { builder.leased() } else { builder };
        let limiter = builder.build().expect("a limiter");
        let shadowed = limiter.clone();
        self.set_shadow = Some(Box::new(move |is_shadow| shadowed.set_shadow(is_shadow)));
        limiter.into()
    }

    /// A limiter of this policy, under the name of a limiter without members. It has begun.
    pub(crate) fn limit(&mut self, line: &str) -> AnyLimiter {
        let limiter = self.limiter(&[(NAME, line)]);
        // Over a store, a limit that does not start full begins with its first request.
        let _ = self.try_acquire(&limiter, 1);
        limiter
    }

    /// Sets whether the last limiter is in shadow mode.
    pub(crate) fn shadow(&mut self, is_shadow: bool) {
        let set = self.set_shadow.take().expect("a limiter of one limit");
        set(is_shadow);
        self.set_shadow = Some(set);
        self.tell(format!("shadow: {is_shadow}"));
    }

    /// A limiter of each key, of this policy.
    pub(crate) fn keyed(&mut self, line: &str) -> AnyKeyed<String> {
        let _context = self.runtime.enter();
        let Some((store, _)) = &self.store else {
            let policy: AnyPolicy = line.parse().expect("a policy");
            let since = Duration::from_micros(START) + self.began.elapsed();
            return KeyedRateLimiter::new(policy.with_epoch(since), 100).into();
        };
        let keys = store.keyed("users").limit(NAME, line);
        let keys = if self.is_leased { keys.leased() } else { keys };
        keys.build().expect("a limiter").into()
    }

    pub(crate) fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        let _context = self.runtime.enter();
        make()
    }

    pub(crate) fn tell(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    pub(crate) fn advance(&mut self, span: Duration) {
        self.settle();
        self.runtime.block_on(async {
            tokio::time::advance(span).await;
            turns().await;
        });
        self.settle();
        self.tell(format!("{span:?} later"));
        for i in 0..self.waits.len() {
            self.look(i);
        }
    }

    /// Waits until the store has replied to all calls, and tasks have seen the replies.
    fn settle(&mut self) {
        let Some((store, _)) = &self.store else { return };
        loop {
            while store.pending() > 0 {
                std::thread::yield_now();
            }
            let counts = store.counts();
            // The tasks of leases. They wait for time, for a notification or for a reply.
            self.runtime.block_on(turns());
            // A call that a task made may have a reply that no task took.
            if store.pending() == 0 && store.counts() == counts {
                return;
            }
        }
    }

    pub(crate) fn try_acquire<'a>(
        &mut self,
        limiter: &AnyLimiter,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        let answer = self.inside(|| limiter.try_acquire_many(request));
        self.settle();
        self.tell(format!("try: {}", told(&answer)));
        answer
    }

    /// Begins a wait, and returns its number.
    pub(crate) fn acquire<'a>(&mut self, limiter: &AnyLimiter, request: impl Into<AllRequest<'a>>) -> usize {
        let wait = tokio_test::task::spawn(limiter.acquire_many(request));
        self.waits.push(Some(Waits::Permits(wait)));
        self.look(self.waits.len() - 1);
        self.waits.len() - 1
    }

    /// Makes a reservation, and returns its number.
    pub(crate) fn reserve<'a>(
        &mut self,
        limiter: &AnyLimiter,
        request: impl Into<AllRequest<'a>>,
    ) -> Option<usize> {
        let reservation = self.inside(|| limiter.reserve(request));
        self.settle();
        match reservation {
            Ok(reservation) => {
                self.waits.push(Some(Waits::Reservation(tokio_test::task::spawn(reservation))));
                let number = self.waits.len() - 1;
                self.tell(format!("reservation {number}"));
                Some(number)
            }
            Err(refusal) => {
                self.tell(format!("no reservation: {}", refused(&refusal)));
                None
            }
        }
    }

    pub(crate) fn due_in(&mut self, reservation: usize) -> Duration {
        let _context = self.runtime.enter();
        let Some(Waits::Reservation(wait)) = &self.waits[reservation] else {
            panic!("no reservation {reservation}")
        };
        wait.due_in()
    }

    /// Settles a reservation.
    pub(crate) fn settle_as<'a>(&mut self, reservation: usize, used: impl Into<AllRequest<'a>>) {
        let Some(Waits::Reservation(wait)) = self.waits[reservation].take() else {
            panic!("no reservation {reservation}")
        };
        let answer = self.inside(|| wait.into_inner().settle(used));
        self.settle();
        self.tell(format!("settle {reservation}: {:?}", answer.map_err(|refusal| refused(&refusal))));
    }

    pub(crate) fn drop_wait(&mut self, number: usize) {
        let _context = self.runtime.enter();
        drop(self.waits[number].take());
        drop(_context);
        self.settle();
        self.tell(format!("{number} is dropped"));
    }

    /// Polls a wait until it waits for time.
    pub(crate) fn look(&mut self, number: usize) {
        let mut is_first = true;
        loop {
            let Some(wait) = &mut self.waits[number] else { return };
            let is_woken = match wait {
                Waits::Permits(wait) => wait.is_woken(),
                Waits::Reservation(wait) => wait.is_woken(),
            };
            if !is_first && !is_woken {
                return;
            }
            is_first = false;
            let _context = self.runtime.enter();
            let (answer, is_over) = match wait {
                Waits::Permits(wait) => match wait.poll() {
                    std::task::Poll::Pending => (None, false),
                    std::task::Poll::Ready(answer) => (Some(told(&answer)), true),
                },
                Waits::Reservation(wait) => match wait.poll() {
                    std::task::Poll::Pending => (None, false),
                    std::task::Poll::Ready(Ok(grant)) => {
                        (Some(format!("{} permits", grant.permits())), false)
                    }
                    std::task::Poll::Ready(Err(refusal)) => (Some(refused(&refusal)), true),
                },
            };
            drop(_context);
            if is_over {
                self.waits[number] = None;
            }
            self.settle();
            if let Some(answer) = answer {
                self.tell(format!("{number}: {answer}"));
                return;
            }
        }
    }

    pub(crate) fn status(&mut self, limiter: &AnyLimiter) -> AllStatus {
        let status = self.inside(|| limiter.status());
        self.tell(status_of(&status));
        status
    }

    /// The permits of each limit. Only the store reports the times of a status.
    pub(crate) fn available(&mut self, limiter: &AnyLimiter) {
        let status = self.inside(|| limiter.status());
        let members = status.members.iter().map(|(name, status)| format!("{name}: {}", status.available));
        let members: Vec<String> = members.collect();
        self.tell(members.join("; "));
    }

    /// A request that reports the remaining permits.
    pub(crate) fn left_of(&mut self, limiter: &AnyLimiter, n: u32) {
        let answer = self.inside(|| limiter.try_acquire_many(Request::permits(n).with_left()));
        self.settle();
        let left = answer.as_ref().ok().and_then(AllPermits::left);
        let left: Option<Vec<u64>> = left.map(|left| left.members.iter().map(|(_, s)| s.available).collect());
        self.tell(format!("{:?} permits, left {left:?}", answer.as_ref().map(AllPermits::permits)));
    }

    /// Any other call, whose result is recorded.
    pub(crate) fn call<T: std::fmt::Debug>(&mut self, what: &str, call: impl FnOnce() -> T) -> T {
        let answer = self.inside(call);
        self.settle();
        self.tell(format!("{what}: {answer:?}"));
        answer
    }
}

/// Lets all other tasks run until they wait.
async fn turns() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

fn told(answer: &Result<AllPermits, AllRefusal>) -> String {
    match answer {
        Ok(permits) => {
            let left = permits.left().map(status_of);
            format!("{} permits after {:?}, left {left:?}", permits.permits(), permits.waited())
        }
        Err(refusal) => refused(refusal),
    }
}

fn refused(refusal: &AllRefusal) -> String {
    let left = refusal.left().map(status_of);
    let wait = refusal.retry_after().map(up_to_micros);
    let kind = format!("{:?}", refusal.refusal());
    let kind = kind.split("retry_after").next().unwrap_or_default();
    match (refusal.member(), wait) {
        // In one process, a single limiter has no name.
        (None | Some(NAME), _) => format!("{kind}, retry after {wait:?}, left {left:?}"),
        (Some(name), Some(_)) => format!("{name}: {kind}, retry after {wait:?}, left {left:?}"),
        (Some(_), None) => format!("{refusal}; {kind}, left {left:?}"),
    }
}

/// Times of a store are whole microseconds.
fn up_to_micros(span: Duration) -> Duration {
    match u64::try_from(span.as_nanos().div_ceil(1000)) {
        Ok(micros) => Duration::from_micros(micros),
        Err(_) => Duration::MAX,
    }
}

fn status_of(status: &AllStatus) -> String {
    let members = status.members.iter().map(|(name, s)| {
        let (next_in, full_in) = (up_to_micros(s.next_in), up_to_micros(s.full_in));
        format!("{name}: {} of {}, next in {next_in:?}, full in {full_in:?}", s.available, s.limit)
    });
    let members: Vec<String> = members.collect();
    format!("[{}] {} wait, paused for {:?}", members.join("; "), status.waiting, status.paused_for)
}

/// Compares the results of a behaviour in one process and over a store.
pub(crate) fn compare(name: &str, behaviour: impl Fn(&mut World)) {
    if let Some(shared) = World::over_a_store() {
        compare_in(shared, name, behaviour);
    }
}

/// Like [`compare`], without leases and with them.
pub(crate) fn compare_both(name: &str, behaviour: impl Fn(&mut World)) {
    compare(name, &behaviour);
    compare_leased(name, behaviour);
}

/// Like [`compare`], with leases. Returns the permits that were on lease.
pub(crate) fn compare_leased(name: &str, behaviour: impl Fn(&mut World)) -> Option<u64> {
    let shared = World { is_leased: true, ..World::over_a_store()? };
    compare_in(shared, name, behaviour).store.map(|(store, _)| store.lease_counts().taken)
}

fn compare_in(mut shared: World, name: &str, behaviour: impl Fn(&mut World)) -> World {
    let mut alone = World::in_process();
    behaviour(&mut alone);
    behaviour(&mut shared);
    for (i, (alone_tells, shared_tells)) in alone.log.iter().zip(&shared.log).enumerate() {
        let before = alone.log[i.saturating_sub(8)..i].join("\n  ");
        assert_eq!(alone_tells, shared_tells, "{name}, after\n  {before}");
    }
    assert_eq!(alone.log.len(), shared.log.len(), "{name}");
    shared
}
