//! A place in line, as a future.

use std::cmp::Reverse;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::clock::Sleep as _;
use tidegate::{DefaultClock, Nanos, Refusal, Timer};

use crate::line::{Asked, Entry, Granted, Instant, Outcome, Stage, Turn, bounds};
use crate::script::Answer;
use crate::set::Set;

type Sleep = <DefaultClock as Timer>::Sleep;

/// A request in line. It is ready when the request has ended. Dropped before, it leaves the line.
pub(crate) struct Ticket {
    set: Arc<Set>,
    number: u64,
    /// The answer was taken.
    is_over: bool,
    sleep: Option<(Nanos, Pin<Box<Sleep>>)>,
}

/// What a look at a request tells.
enum Seen {
    Ended(Outcome),
    /// It is booked, and looks again at this time.
    Booked(Nanos),
    Undecided,
}

impl Ticket {
    /// Joins the line.
    pub(crate) fn new(set: &Arc<Set>, asked: Asked) -> Ticket {
        let number = set.visit(|state, _, now| {
            let number = state.next;
            state.next += 1;
            let stage = match state.closed {
                true => Stage::Answered(Outcome::Refused(Refusal::Closed.into())),
                false => Stage::InLine,
            };
            if !state.closed {
                state.in_line.insert((Reverse(asked.priority), number));
            }
            let (in_line, full, waker, looks_at) = (Duration::ZERO, false, None, Nanos::MAX);
            state.entries.insert(number, Entry { asked, joined: now, in_line, full, stage, waker, looks_at });
            number
        });
        Ticket { set: set.clone(), number, is_over: false, sleep: None }
    }

    /// Looks at the request. Where `stays` is set, the permits of a granted request stay in line.
    fn look(&mut self, waker: &Waker, stays: bool) -> Seen {
        let waker = waker.clone();
        let (number, set) = (self.number, &self.set);
        let (seen, _old) = set.visit(|state, after, now| {
            let booked = |entry: &Entry| match &entry.stage {
                Stage::Booked { class, turn } => Some((class.clone(), *turn)),
                _ => None,
            };
            let class = state.entries.get(&number).and_then(booked);
            if let Some((class, turn)) = class {
                set.settle(state, after, &class, now);
                // Requests of higher priority may have taken the instants up to its longest wait.
                if let Some(entry) = state.entries.get(&number)
                    && matches!(entry.stage, Stage::Booked { .. })
                    && entry.latest(turn) < now
                {
                    let due = state.classes.get(&class).map_or(now, |class| class.due(turn));
                    let longest = Nanos::from_duration(entry.asked.longest);
                    let retry_after = due.saturating_since(now).saturating_since(longest);
                    set.unbook(state, after, number, now);
                    let refusal = Refusal::Limited { retry_after };
                    state.answer(after, number, Outcome::Refused(refusal.into()));
                }
            }
            let Some(entry) = state.entries.get_mut(&number) else {
                return (Seen::Undecided, None);
            };
            match &entry.stage {
                Stage::Answered(Outcome::Granted(_)) if stays => (Seen::Booked(now), None),
                Stage::Answered(_) => {
                    let ended = state.entries.remove(&number);
                    let Some(Entry { stage: Stage::Answered(outcome), waker, .. }) = ended else {
                        return (Seen::Undecided, None);
                    };
                    (Seen::Ended(outcome), waker)
                }
                Stage::Booked { class, turn } => {
                    let looks_at = state.classes.get(class).map_or(now, |class| class.looks_at(*turn, now));
                    entry.looks_at = looks_at.min(entry.latest(*turn).saturating_add(Nanos::new(1)));
                    (Seen::Booked(entry.looks_at), entry.waker.replace(waker))
                }
                Stage::InLine | Stage::Sent => (Seen::Undecided, entry.waker.replace(waker)),
            }
        });
        self.is_over = matches!(seen, Seen::Ended(_));
        seen
    }

    /// Waits until the request has an instant, which it keeps, or is refused.
    pub(crate) fn poll_decided(&mut self, context: &mut Context<'_>) -> Poll<Outcome<()>> {
        match self.look(context.waker(), true) {
            Seen::Ended(Outcome::Refused(refusal)) => Poll::Ready(Outcome::Refused(refusal)),
            Seen::Ended(Outcome::Undecided(undecided)) => Poll::Ready(Outcome::Undecided(undecided)),
            Seen::Ended(Outcome::Granted(_)) | Seen::Booked(_) => Poll::Ready(Outcome::Granted(())),
            Seen::Undecided => Poll::Pending,
        }
    }

    /// When a booked request is due.
    pub(crate) fn due_in(&self) -> Duration {
        let now = self.set.now();
        let state = self.set.line.lock();
        let due = match state.entries.get(&self.number).map(|entry| &entry.stage) {
            Some(Stage::Booked { class, turn }) => state.classes.get(class).map(|class| class.due(*turn)),
            _ => None,
        };
        due.map_or(Duration::ZERO, |due| due.saturating_since(now).as_duration())
    }

    /// Takes the permits of a booked or granted request, also if its instant has not come. A
    /// request that is not decided leaves the line.
    pub(crate) fn take(mut self) -> Option<Granted> {
        let (set, number) = (self.set.clone(), self.number);
        self.is_over = true;
        set.visit(|state, after, now| {
            let entry = state.entries.remove(&number)?;
            after.wakers.extend(entry.waker);
            match entry.stage {
                Stage::Answered(Outcome::Granted(granted)) => Some(granted),
                Stage::Booked { class, turn } => {
                    let Instant { reply, due, .. } = state.classes.get_mut(&class)?.take(turn)?;
                    state.waiting -= 1;
                    state.permits = state.permits.saturating_sub(bounds::sum(&entry.asked.costs));
                    set.settle(state, after, &class, now);
                    Some(Granted { reply, waited: Duration::ZERO, due })
                }
                Stage::InLine => {
                    state.in_line.remove(&(Reverse(entry.asked.priority), number));
                    None
                }
                _ => None,
            }
        })
    }
}

impl Entry {
    /// The latest time at which it may be granted. The store counts its wait from when it decides.
    fn latest(&self, turn: Turn) -> Nanos {
        self.joined.saturating_add(Nanos::from_duration(self.asked.longest)).max(turn.due)
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let this = &mut *self;
            let looks_at = match this.look(context.waker(), false) {
                Seen::Ended(outcome) => return Poll::Ready(outcome),
                Seen::Undecided => return Poll::Pending,
                Seen::Booked(looks_at) => looks_at,
            };
            let sleep = match this.sleep.take() {
                // The runtime of an earlier poll may have ended.
                Some((at, sleep)) if at == looks_at && !sleep.is_gone() => sleep,
                _ => Box::pin(this.set.clock.sleep_until(looks_at)),
            };
            let (_, sleep) = this.sleep.insert((looks_at, sleep));
            match sleep.as_mut().poll(context) {
                Poll::Ready(()) => this.sleep = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (set, number) = (&self.set, self.number);
        let _gone = set.visit(|state, after, now| {
            set.unbook(state, after, number, now);
            let mut entry = state.entries.remove(&number)?;
            state.in_line.remove(&(Reverse(entry.asked.priority), number));
            if let Stage::Answered(Outcome::Granted(granted)) =
                std::mem::replace(&mut entry.stage, Stage::Sent)
                && granted.reply.answer == Answer::Done
            {
                let Granted { reply, due, .. } = granted;
                set.pass_on(state, after, Instant { due, number, reply }, now);
            }
            Some(entry)
        });
    }
}
