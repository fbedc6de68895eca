//! Random calls to several composites and plain users of shared limiters. No member grants more
//! than it has, no permit is lost, and in the end every member is as if only the granted calls had
//! been made.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::costs;
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::AcquireOwned;
use tidegate::all_of::AcquireAll;
use tidegate::policy::Policy;
use tidegate::{
    AllOf, AllPermits, AnyPolicy, Clock, CountingLimit, FixedWindow, ManualClock, Nanos, Rate, RateLimiter,
    SlidingLog, SmoothBursty, TokenBucket,
};
use tokio_test::task::{Spawn, spawn};

const MEMBERS: usize = 3;
const MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
enum Act {
    Try(usize, u32, u32),
    /// A wait at this priority.
    Join(usize, u32, u32, i8),
    JoinWithin(usize, u32, u64),
    TryPlain(usize, u32),
    JoinPlain(usize, u32),
    Drop(usize),
    Forget(usize),
    DropPlain(usize),
    GiveBack(usize),
    Pass(u64),
    Jump(u64),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..3usize, 0..3u32, 0..3u32).prop_map(|(of, a, b)| Act::Try(of, a, b)),
        6 => (0..3usize, 0..3u32, 0..3u32, 0..2i8).prop_map(|(of, a, b, p)| Act::Join(of, a, b, p)),
        2 => (0..3usize, 0..3u32, 0..500 * MS).prop_map(|(of, n, within)| Act::JoinWithin(of, n, within)),
        3 => (0..MEMBERS, 1..3u32).prop_map(|(of, n)| Act::TryPlain(of, n)),
        3 => (0..MEMBERS, 1..3u32).prop_map(|(of, n)| Act::JoinPlain(of, n)),
        3 => any::<usize>().prop_map(Act::Drop),
        1 => any::<usize>().prop_map(Act::Forget),
        2 => any::<usize>().prop_map(Act::DropPlain),
        4 => any::<usize>().prop_map(Act::GiveBack),
        6 => (0..200 * MS).prop_map(Act::Pass),
        1 => (0..3000 * MS).prop_map(Act::Pass),
        1 => (0..100 * MS).prop_map(Act::Jump),
    ];
    vec(act, 1..120)
}

struct World {
    clock: ManualClock,
    members: [RateLimiter<AnyPolicy, ManualClock>; MEMBERS],
    in_use: CountingLimit,
    composites: [AllOf<ManualClock>; 3],
    waits: Vec<Spawn<AcquireAll<ManualClock>>>,
    plain: Vec<Spawn<AcquireOwned<AnyPolicy, ManualClock>>>,
    permits: Vec<AllPermits>,
    leaked: usize,
}

impl World {
    fn new(policies: [AnyPolicy; MEMBERS]) -> World {
        let clock = ManualClock::new();
        let members = policies.map(|policy| RateLimiter::with_clock(policy, clock.clone()));
        let in_use = CountingLimit::new(2);
        let [a, b, c] = &members;
        let composites = [
            AllOf::new("a", a).with("b", b),
            AllOf::new("b", b).with("a", a).with("c", c),
            AllOf::new("c", c).with_counting("in use", &in_use).with("a", a),
        ];
        let (waits, plain, permits) = Default::default();
        World { clock, members, in_use, composites, waits, plain, permits, leaked: 0 }
    }

    fn weights(of: usize, a: u32, b: u32) -> Vec<u32> {
        match of {
            0 => vec![a, b],
            1 => vec![b, a, 1],
            _ => vec![a, 1, b],
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Try(of, a, b) => {
                // A composite that notices only now that a request of higher priority delays it
                // lets others go first, and another composite may notice that.
                let thrice = self.composites.iter().cycle().take(3 * self.composites.len());
                thrice.for_each(|composite| assert!(composite.status().waiting < 100));
                // The permits that a newcomer could take beside requests that wait depend on the
                // times at which composites expect their permits, and the try may correct these.
                let levels = |members: &[RateLimiter<AnyPolicy, ManualClock>; MEMBERS]| {
                    members.each_ref().map(|member| {
                        let status = member.status();
                        (status.full_in, if status.waiting == 0 { status.available } else { 0 })
                    })
                };
                let (before, free) = (levels(&self.members), self.in_use.available());
                match self.composites[of]
                    .try_acquire_many(costs(&self.composites[of], &Self::weights(of, a, b)))
                {
                    Ok(permits) => self.permits.push(permits),
                    Err(_) => {
                        let after = (levels(&self.members), self.in_use.available());
                        assert_eq!((before, free), after, "a refusal takes nothing");
                    }
                }
            }
            Act::Join(of, a, b, priority) => {
                let request = costs(&self.composites[of], &Self::weights(of, a, b)).priority(priority);
                self.waits.push(spawn(self.composites[of].acquire_many(request)));
            }
            Act::JoinWithin(of, n, within) => {
                let within = Duration::from_nanos(within);
                let weights = Self::weights(of, n, 1);
                self.waits.push(spawn(
                    self.composites[of].acquire_many(costs(&self.composites[of], &weights).within(within)),
                ));
            }
            Act::TryPlain(of, n) => drop(self.members[of].try_acquire_many(n)),
            Act::JoinPlain(of, n) => self.plain.push(spawn(self.members[of].acquire_owned(n))),
            Act::Drop(which) if !self.waits.is_empty() => {
                drop(self.waits.swap_remove(which % self.waits.len()));
            }
            // A leaked wait at a counting limit would keep its permit forever.
            Act::Forget(which) if !self.waits.is_empty() && self.leaked < 2 => {
                let wait = self.waits.swap_remove(which % self.waits.len());
                if !format!("{wait:?}").contains(", 1, ") {
                    self.leaked += 1;
                    std::mem::forget(wait);
                }
            }
            Act::DropPlain(which) if !self.plain.is_empty() => {
                drop(self.plain.swap_remove(which % self.plain.len()));
            }
            Act::GiveBack(which) if !self.permits.is_empty() => {
                drop(self.permits.swap_remove(which % self.permits.len()));
            }
            Act::Pass(span) => self.clock.advance(Duration::from_nanos(span)),
            Act::Jump(span) => self.clock.jump(Duration::from_nanos(span)),
            _ => {}
        }
        self.poll();
    }

    /// Polls the futures that are new or were woken.
    fn poll(&mut self) {
        let permits = &mut self.permits;
        self.waits.retain_mut(|wait| match wait.poll() {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                permits.extend(answer.ok());
                false
            }
        });
        self.plain.retain_mut(|wait| wait.poll().is_pending());
        assert!(self.in_use.available() <= 2);
    }

    /// Serves all remaining waiters in time, only through the alarms.
    fn finish(mut self) {
        for _ in 0..200 {
            self.permits.clear();
            self.clock.advance(Duration::from_millis(500));
            let permits = &mut self.permits;
            self.waits.retain_mut(|wait| match wait.is_woken() {
                false => true,
                true => match wait.poll() {
                    Poll::Pending => true,
                    Poll::Ready(answer) => {
                        permits.extend(answer.ok());
                        false
                    }
                },
            });
            self.plain.retain_mut(|wait| !wait.is_woken() || wait.poll().is_pending());
        }
        assert!(self.waits.is_empty() && self.plain.is_empty(), "a request waits forever");
        self.permits.clear();
        assert_eq!(self.in_use.available(), 2);
        self.clock.advance(Duration::from_secs(100));
        for member in &self.members {
            let status = member.status();
            assert_eq!((status.available, status.waiting), (status.limit.min(status.available), 0));
            assert!(status.full_in.is_zero(), "full in the end: {status:?}");
        }
        for of in &self.composites {
            assert_eq!(of.status().waiting, 0);
            assert!(of.try_acquire().is_ok(), "nothing is in the way");
            self.clock.advance(Duration::from_secs(1));
        }
    }
}

fn per_second(permits: u64) -> Rate {
    Rate::per_second(permits)
}

fn some_policy() -> impl Strategy<Value = AnyPolicy> {
    let rate = (3u64..20).prop_map(per_second);
    (rate, 0..4u8, 3..6u32).prop_map(|(rate, kind, burst)| match kind {
        0 => SmoothBursty::new(rate).max_burst(Duration::ZERO).into(),
        1 => TokenBucket::new(rate, burst).into(),
        2 => FixedWindow::new(rate).into(),
        _ => SlidingLog::new(rate).into(),
    })
}

proptest! {
    #[test]
    fn no_request_waits_for_ever_and_nothing_is_lost(
        policies in [some_policy(), some_policy(), some_policy()],
        acts in some_acts(),
    ) {
        let mut world = World::new(policies);
        for act in acts {
            world.act(act);
        }
        world.finish();
    }

    /// Runs with dropped waits and refused calls. In the end the members are as if only the granted
    /// calls had been made. The members are buckets, whose state is a number that shows every
    /// trace.
    #[test]
    fn only_grants_leave_a_trace(acts in some_acts(), burst in 2..6u32) {
        let policies = [5u64, 7, 3].map(|rate| TokenBucket::new(per_second(rate), burst));
        let mut world = World::new(policies.clone().map(AnyPolicy::from));
        // A waiter that moves up because another one left is charged as of the time at which it was
        // due without the other waiter, unless there is no catch-up.
        world.members.iter().for_each(|member| member.set_catch_up(Duration::ZERO));
        let mut granted: Vec<Granted> = Vec::new();
        let mut waits: Vec<Noted> = Vec::new();
        for act in acts {
            // There are no plain users here, so every grant of a member belongs to a composite that
            // reports what it took.
            match act {
                Act::Try(of, a, b) => {
                    let asked = World::weights(of, a, b);
                    if let Ok(permits) = world.composites[of].try_acquire_many(costs(&world.composites[of], &asked)) {
                        granted.push((world.clock.now(), of, asked));
                        world.permits.push(permits);
                    }
                }
                Act::Join(of, a, b, priority) => {
                    let composite = &world.composites[of];
                    let asked = World::weights(of, a, b);
                    let woken = Arc::new(Woken { clock: world.clock.clone(), at: AtomicU64::new(u64::MAX) });
                    waits.push((Box::pin(composite.acquire_many(costs(composite, &asked).priority(priority))), woken, of, asked));
                }
                Act::Drop(which) if !waits.is_empty() => drop(waits.remove(which % waits.len())),
                Act::GiveBack(which) if !world.permits.is_empty() => {
                    drop(world.permits.swap_remove(which % world.permits.len()));
                }
                Act::Pass(span) => world.clock.advance(Duration::from_nanos(span)),
                _ => {}
            }
            waits.retain_mut(|(wait, woken, of, asked)| {
                let waker = Waker::from(woken.clone());
                match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => true,
                    Poll::Ready(answer) => {
                        let at = woken.at.load(Ordering::Relaxed);
                        let at = if at == u64::MAX { world.clock.now() } else { Nanos::new(at) };
                        if let Ok(permits) = answer {
                            granted.push((at, *of, asked.clone()));
                            world.permits.push(permits);
                        }
                        false
                    }
                }
            });
        }
        drop(waits);
        let now = world.clock.now();
        granted.sort_by_key(|(at, ..)| *at);
        for (index, policy) in policies.iter().enumerate() {
            let state = policy.start(Nanos::ZERO);
            for (at, of, asked) in &granted {
                let position = world.composites[*of].names().position(|name| name == ["a", "b", "c"][index]);
                if let Some(n) = position.map(|position| asked[position])
                    && n > 0
                {
                    prop_assert!(policy.try_acquire(&state, *at, n).is_ok(), "more than was available");
                }
            }
            let (found, expected) = (world.members[index].status(), policy.status(&state, now));
            prop_assert_eq!(found.available, expected.available);
            prop_assert_eq!(found.full_in, expected.full_at.saturating_since(now).as_duration());
        }
    }
}

/// The time of a grant, the composite, and the permits of each of its members.
type Granted = (Nanos, usize, Vec<u32>);

type Noted = (Pin<Box<AcquireAll<ManualClock>>>, Arc<Woken>, usize, Vec<u32>);

/// Records when it was last woken: the time of the grant.
struct Woken {
    clock: ManualClock,
    at: AtomicU64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.at.store(self.clock.now().as_u64(), Ordering::Relaxed);
    }
}
