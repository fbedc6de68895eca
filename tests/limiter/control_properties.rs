//! A limiter with priorities, bounds, pauses and debts against a simple model: a sorted list of
//! waiters, and exact integers. Joins, drops, tries and times are random, on the manual clock.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::AcquireOwned;
use tidegate::{
    Grant, ManualClock, Pause, QueueBounds, Rate, RateLimiter, Refusal, Request, TokenBucket, WhenFull,
};

/// A permit accrues each second, and between whole quarters nothing happens.
const QUARTER: Duration = Duration::from_millis(250);
const PER_PERMIT: i64 = 4;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A request for the permits, at this priority, within this many quarters.
    Join(u32, i8, Option<i64>),
    Try(u32, i8),
    /// A request for one permit, by the call that cannot be refused.
    Acquire,
    Drop(usize),
    Pause(i64, bool),
    Resume,
    Debit(u32),
    Drain,
    Reset,
    Bounds(usize, u64, WhenFull),
    Reserve(u32, i8),
    Pass(i64),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let when_full = prop_oneof![
        Just(WhenFull::RefuseNewcomer),
        Just(WhenFull::DropOldest),
        Just(WhenFull::DropLeastImportant)
    ];
    let priority = || -2i8..3;
    let act = prop_oneof![
        12 => (1u32..6, priority(), proptest::option::of(0i64..60)).prop_map(|(n, p, within)| Act::Join(n, p, within)),
        4 => (1u32..6, priority()).prop_map(|(n, p)| Act::Try(n, p)),
        2 => Just(Act::Acquire),
        4 => any::<usize>().prop_map(Act::Drop),
        1 => (0i64..30, any::<bool>()).prop_map(|(span, keeps)| Act::Pause(span, keeps)),
        1 => Just(Act::Resume),
        1 => (0u32..8).prop_map(Act::Debit),
        1 => Just(Act::Drain),
        1 => Just(Act::Reset),
        2 => (0usize..6, 0u64..20, when_full).prop_map(|(waiters, permits, full)| Act::Bounds(waiters, permits, full)),
        1 => (0u32..4, priority()).prop_map(|(kept, from)| Act::Reserve(kept, from)),
        8 => (0i64..12).prop_map(Act::Pass),
    ];
    vec(act, 1..80)
}

// The reference model

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Granted,
    /// In quarters.
    Limited(i64),
    ExceedsLimit(u32),
    /// The number of quarters until there is room.
    QueueFull(i64),
    Displaced,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    name: usize,
    n: u32,
    priority: i8,
    /// The time by which it must be granted, and the wait that it asked for.
    deadline: Option<(i64, i64)>,
}

struct Model {
    /// In quarters, like all times here.
    now: i64,
    burst: i64,
    /// When the bucket is empty.
    zero: i64,
    opens: i64,
    /// During a pause, whether the pause keeps the stored permits.
    pause: Option<bool>,
    kept: (u32, i8),
    bounds: QueueBounds,
    /// Sorted by priority, the highest first, then by arrival.
    line: Vec<Waiter>,
    told: Vec<(usize, Told)>,
}

impl Model {
    fn kept_from(&self, priority: i8) -> i64 {
        if priority < self.kept.1 { self.kept.0.into() } else { 0 }
    }

    /// Returns when the requests before it have been served, and its own permits are available in
    /// addition to the permits that it must leave.
    fn due(&self, before: &[Waiter], n: u32, priority: i8) -> i64 {
        let at = self.now.max(self.opens);
        let zero = match self.pause {
            Some(keeps_permits) => {
                let held = self.zero.max(self.now - self.burst * PER_PERMIT) + at - self.now;
                if keeps_permits { held } else { held.max(at) }
            }
            None => self.zero.max(at - self.burst * PER_PERMIT),
        };
        let permits: i64 = before.iter().map(|waiter| i64::from(waiter.n)).sum();
        let most = self.burst - self.kept_from(priority);
        if i64::from(n) > most {
            return i64::MAX;
        }
        (zero + (permits + i64::from(n) + self.kept_from(priority)) * PER_PERMIT).max(at)
    }

    fn before(&self, priority: i8) -> usize {
        self.line.iter().filter(|waiter| waiter.priority >= priority).count()
    }

    fn due_behind(&self, n: u32, priority: i8) -> i64 {
        self.due(&self.line[..self.before(priority)], n, priority)
    }

    /// Returns the time between two times, in quarters; if the first is never, the result is never.
    fn span(due: i64, from: i64) -> i64 {
        if due == i64::MAX { i64::MAX } else { (due - from).max(0) }
    }

    fn take(&mut self, n: u32) {
        self.zero = self.zero.max(self.now - self.burst * PER_PERMIT) + i64::from(n) * PER_PERMIT;
    }

    fn can_never(&self, n: u32, priority: i8) -> Option<Told> {
        let most = self.burst - self.kept_from(priority);
        let burst = u32::try_from(most.max(0)).expect("small");
        (n > 1 && i64::from(n) > most).then_some(Told::ExceedsLimit(burst))
    }

    /// Serves the waiters that are due, one quarter after the other.
    fn pass(&mut self, quarters: i64) {
        for quarter in 0..=quarters {
            if quarter > 0 {
                self.step();
            }
            while let Some(first) = self.line.first().copied() {
                if self.due(&[], first.n, first.priority) > self.now {
                    break;
                }
                self.line.remove(0);
                self.take(first.n);
                self.told.push((first.name, Told::Granted));
            }
        }
    }

    /// Advances by a quarter. During a pause nothing accrues.
    fn step(&mut self) {
        if let Some(keeps_permits) = self.pause {
            self.zero = self.zero.max(self.now - self.burst * PER_PERMIT) + 1;
            if self.now + 1 == self.opens {
                self.pause = None;
                self.zero = if keeps_permits { self.zero } else { self.zero.max(self.opens) };
            }
        }
        self.now += 1;
    }

    /// Refuses waiters that are now too late, or can never be served, as if they had not been ahead
    /// of the others.
    fn retime(&mut self) {
        let mut stay: Vec<Waiter> = Vec::new();
        let mut late = Vec::new();
        for waiter in std::mem::take(&mut self.line) {
            let due = self.due(&stay, waiter.n, waiter.priority);
            if let Some(never) = self.can_never(waiter.n, waiter.priority) {
                self.told.push((waiter.name, never));
            } else if waiter.deadline.is_some_and(|(deadline, _)| due > deadline) {
                late.push(waiter);
            } else {
                stay.push(waiter);
            }
        }
        self.line = stay;
        self.pass(0);
        for waiter in late {
            // The decision that this call would get now.
            let within = waiter.deadline.map_or(0, |(_, within)| within);
            let due = self.due_behind(waiter.n, waiter.priority);
            self.told.push((waiter.name, self.late(waiter.n, waiter.priority, due, self.now + within)));
        }
    }

    fn fits(&self, line: &[Waiter], n: u32) -> bool {
        let permits: u64 = line.iter().map(|waiter| u64::from(waiter.n)).sum();
        line.len() < self.bounds.waiters && permits + u64::from(n) <= self.bounds.permits
    }

    /// Returns which waiters of a queue stay, and which are dropped, to make room for another
    /// request.
    fn room(&self, line: &[Waiter], n: u32, priority: i8) -> Option<(Vec<Waiter>, Vec<usize>)> {
        let (mut line, mut gone) = (line.to_vec(), Vec::new());
        while !self.fits(&line, n) {
            let mut victims = line.iter().enumerate().filter(|(_, waiter)| match self.bounds.when_full {
                WhenFull::RefuseNewcomer => false,
                WhenFull::DropOldest => waiter.priority <= priority,
                WhenFull::DropLeastImportant => waiter.priority < priority,
            });
            let victim = match self.bounds.when_full {
                // The first or the last waiter of the lowest priority.
                WhenFull::DropOldest => victims.min_by_key(|(_, waiter)| waiter.priority),
                _ => victims.next_back(),
            };
            let at = victim.map(|(at, _)| at)?;
            gone.push(line.remove(at).name);
        }
        Some((line, gone))
    }

    fn join(&mut self, name: usize, n: u32, priority: i8, within: Option<i64>) {
        if let Some(never) = self.can_never(n, priority) {
            self.told.push((name, never));
            return;
        }
        let due = self.due_behind(n, priority);
        if due <= self.now && self.before(priority) == 0 {
            self.take(n);
            self.told.push((name, Told::Granted));
            self.retime_if_passed(priority);
            return;
        }
        let deadline = within.map(|within| (self.now + within, within));
        if let Some((deadline, _)) = deadline
            && due > deadline
        {
            self.told.push((name, self.late(n, priority, due, deadline)));
            return;
        }
        if !self.fits(&self.line, n) {
            let Some((line, gone)) = self.room(&self.line, n, priority) else {
                self.told.push((name, self.full(n, priority, due)));
                return;
            };
            self.line = line;
            self.told.extend(gone.into_iter().map(|name| (name, Told::Displaced)));
        }
        let waiter = Waiter { name, n, priority, deadline };
        self.line.insert(self.before(priority), waiter);
        self.retime_if_passed(priority);
        self.pass(0);
    }

    /// Refuses waiters behind a new request at once if they are now too late.
    fn retime_if_passed(&mut self, priority: i8) {
        if self.line.iter().any(|waiter| waiter.priority < priority && waiter.deadline.is_some()) {
            self.retime();
        }
    }

    fn full(&self, n: u32, priority: i8, own: i64) -> Told {
        let mut at = own;
        for served in 1..=self.line.len() {
            let last = self.line[served - 1];
            let due = self.due(&self.line[..served - 1], last.n, last.priority);
            if due >= own {
                break;
            }
            if self.room(&self.line[served..], n, priority).is_some() {
                at = due;
                break;
            }
        }
        Told::QueueFull(Self::span(at, self.now))
    }

    /// Returns the refusal of a request that would wait for too long. If the queue is full as well,
    /// the refusal with the later time counts.
    fn late(&self, n: u32, priority: i8, due: i64, deadline: i64) -> Told {
        let limited = Self::span(due, deadline);
        match self.full(n, priority, due) {
            Told::QueueFull(full) if full > limited && self.room(&self.line, n, priority).is_none() => {
                Told::QueueFull(full)
            }
            _ => Told::Limited(limited),
        }
    }

    fn attempt(&mut self, n: u32, priority: i8) -> Told {
        if let Some(never) = self.can_never(n, priority) {
            return never;
        }
        let due = self.due_behind(n, priority);
        if due <= self.now && self.before(priority) == 0 {
            self.take(n);
            self.retime_if_passed(priority);
            return Told::Granted;
        }
        Told::Limited(Self::span(due, self.now))
    }

    fn available(&self) -> i64 {
        let zero = self.zero.max(self.now - self.burst * PER_PERMIT);
        (self.now - zero).div_euclid(PER_PERMIT).max(0)
    }
}

// The limiter

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Future = Pin<Box<dyn std::future::Future<Output = Result<Grant, Refusal>>>>;

struct Real {
    limiter: RateLimiter<TokenBucket, ManualClock>,
    clock: ManualClock,
    waiting: Vec<(usize, Future, Arc<Flag>)>,
    told: Vec<(usize, Told)>,
}

fn quarters(span: Duration) -> i64 {
    if span == Duration::MAX {
        return i64::MAX;
    }
    assert_eq!(span.as_nanos() % QUARTER.as_nanos(), 0, "not a whole quarter: {span:?}");
    i64::try_from(span.as_nanos() / QUARTER.as_nanos()).expect("soon")
}

fn told(answer: Result<Grant, Refusal>) -> Told {
    match answer {
        Ok(_) => Told::Granted,
        Err(Refusal::Limited { retry_after } | Refusal::Paused { retry_after }) => {
            Told::Limited(quarters(retry_after.as_duration()))
        }
        Err(Refusal::ExceedsLimit { limit, .. }) => Told::ExceedsLimit(limit),
        Err(Refusal::QueueFull { retry_after }) => Told::QueueFull(quarters(retry_after.as_duration())),
        Err(Refusal::Displaced) => Told::Displaced,
        Err(other) => panic!("{other}"),
    }
}

impl Real {
    fn join(&mut self, name: usize, future: Future) {
        self.waiting.push((name, future, Arc::new(Flag(AtomicBool::new(true)))));
        self.poll();
    }

    /// Polls the woken futures, and no others, until none is woken.
    fn poll(&mut self) {
        let answers = &mut self.told;
        let mut again = true;
        while std::mem::take(&mut again) {
            self.waiting.retain_mut(|(name, future, flag)| {
                if !flag.0.swap(false, Ordering::Relaxed) {
                    return true;
                }
                again = true;
                let waker = Waker::from(flag.clone());
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => true,
                    Poll::Ready(answer) => {
                        answers.push((*name, told(answer)));
                        false
                    }
                }
            });
        }
    }
}

fn request(n: u32, priority: i8, within: Option<i64>) -> Request {
    let request = Request::permits(n).priority(priority);
    match within {
        Some(within) => request.within(QUARTER * u32::try_from(within).expect("small")),
        None => request,
    }
}

proptest! {
    #[test]
    fn the_controlled_queue_does_what_an_obvious_one_does(burst in 1i64..8, acts in some_acts()) {
        let clock = ManualClock::new();
        let policy = TokenBucket::new(Rate::per_second(1), u32::try_from(burst)?).start_empty();
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        // Timers are never late here, and a waiter that a change lets go is not charged at an
        // earlier time.
        limiter.set_catch_up(Duration::ZERO);
        let mut real = Real { limiter, clock, waiting: Vec::new(), told: Vec::new() };
        let mut model = Model {
            now: 0, burst, zero: 0, opens: 0, pause: None, kept: (0, 0), bounds: QueueBounds::UNBOUNDED,
            line: Vec::new(), told: Vec::new(),
        };
        for (name, act) in acts.into_iter().enumerate() {
            match act {
                Act::Join(n, priority, within) => {
                    model.join(name, n, priority, within);
                    let wait: AcquireOwned<_, _> = real.limiter.acquire_owned(request(n, priority, within));
                    real.join(name, Box::pin(wait));
                }
                Act::Acquire => {
                    model.join(name, 1, 0, None);
                    let limiter = real.limiter.clone();
                    real.join(name, Box::pin(async move { limiter.acquire().await }));
                }
                Act::Try(n, priority) => {
                    let answer = real.limiter.try_acquire_many(request(n, priority, None));
                    prop_assert_eq!(told(answer), model.attempt(n, priority));
                }
                Act::Drop(which) if !real.waiting.is_empty() => {
                    let (name, future, _) = real.waiting.remove(which % real.waiting.len());
                    drop(future);
                    model.line.retain(|waiter| waiter.name != name);
                    model.pass(0);
                }
                Act::Drop(_) => {}
                Act::Pause(span, keeps_permits) => {
                    if span > 0 {
                        model.opens = model.opens.max(model.now + span);
                        model.pause = Some(keeps_permits && model.pause.unwrap_or(true));
                        model.retime();
                    }
                    let pause = Pause::lasting(QUARTER * u32::try_from(span)?);
                    real.limiter.pause(if keeps_permits { pause.keep_permits() } else { pause });
                }
                Act::Resume => {
                    model.opens = model.opens.min(model.now);
                    model.pause = None;
                    model.retime();
                    real.limiter.resume();
                }
                Act::Debit(n) => {
                    model.take(n);
                    model.retime();
                    real.limiter.debit(n);
                }
                Act::Drain => {
                    let there = model.available();
                    model.take(u32::try_from(there)?);
                    model.retime();
                    prop_assert_eq!(real.limiter.drain(), u64::try_from(there)?);
                }
                Act::Reset => {
                    model.zero = model.now;
                    model.opens = model.opens.min(model.now);
                    model.pause = None;
                    model.retime();
                    real.limiter.reset();
                }
                Act::Bounds(waiters, permits, when_full) => {
                    model.bounds = QueueBounds::UNBOUNDED.max_waiters(waiters).max_permits(permits).when_full(when_full);
                    real.limiter.set_queue_bounds(model.bounds);
                }
                Act::Reserve(permits, from) => {
                    model.kept = (permits, from);
                    model.retime();
                    real.limiter.keep_for_priority(permits, from);
                }
                Act::Pass(quarters) => {
                    model.pass(quarters);
                    real.clock.advance(QUARTER * u32::try_from(quarters)?);
                }
            }
            real.poll();
            prop_assert_eq!(real.limiter.status().waiting, model.line.len());
            real.told.sort_by_key(|(name, _)| *name);
            model.told.sort_by_key(|(name, _)| *name);
            prop_assert_eq!(&real.told, &model.told);
        }
    }
}
