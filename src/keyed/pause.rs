//! A pause of all keys.
//!
//! # How
//!
//! A shard with paused keys has a [`Hold`]. During the hold, its known keys are in another table,
//! so a request does not find its key where it searches first. A request outside of a pause
//! therefore checks nothing more.
//!
//! | time | a known or new key | a key with a key limiter |
//! |---|---|---|
//! | before the pause ends | a try is refused, with the time at which the key has its permits; a request that waits creates a key limiter, and so does a refund | the key limiter is paused |
//! | from then on | the next call for the shard ends the pause: each known state is empty as of the end of the pause, unless the pause keeps stored permits, and the known keys are in their own table again | the key limiter ends its pause |
//!
//! **A window policy**, or a window part of a policy, has no state that is empty and then gains
//! permits one by one. The key limiter of such a key spaces its grants (`line/pause.rs`). So the
//! hold continues until a window has passed, and until then a key with permits that are due gets a
//! key limiter.
//!
//! **A key limiter that is created during the hold** starts with the pause of its shard, as if it
//! had existed before. No key limiter is settled during a hold: the state that it leaves would be
//! as of another time than the states in the table.
//!
//! **A key that is unknown when the pause ends** is new, and would be full: a flood of new keys
//! would cause the burst that the pause prevents. So a shard records the end of the pause. A key
//! that is added later starts empty as of that time, if that leaves it less than a new key has. A
//! change of all keys converts that time, as far as one time can have the permits of the key. Other
//! plans do not: keys with plans share that time. The time from which windows space their grants is
//! recorded apart, because no change moves it.
//!
//! **Time stands still** in the states of a hold: they are as of `since`. [`Table::advance`]
//! advances them before a change of all keys and at the end of the pause.
//!
//! A pause, a resume and a change of all keys hold one mutex, so they pass through the shards in
//! one order. `keyed/change.rs` describes the lock order, wakers and panics.
//!
//! **Checked by** `tests/keyed/pause.rs`, against a plain limiter for each key, and by
//! `loom-tests/keyed.rs`.

use std::hash::Hash;
use std::sync::Arc;

use super::key_limiters::KeyLimiter;
use super::shard::{Locked, Shard};
use super::table::Table;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::Pause;
use crate::limiter::events::{Events, report};
use crate::limiter::shared::Shared;
use crate::line::deferred::{Deferred, resume_panic, run};
use crate::line::rule::{Rule, Single};
use crate::policy::{Part, Policy, PolicyStatus, Standstill, limited};
use crate::status::Status;
use crate::sync::{ShardedLockReadGuard, lock, read, write};
use crate::time::Nanos;

/// The pause of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// When the pause began.
    pub(crate) begin: Nanos,
    /// The states are as of this time, where they can stand still.
    pub(crate) since: Nanos,
    pub(crate) opens: Nanos,
    pub(crate) keeps_permits: bool,
    /// Whether the pause has ended. The hold continues for window policies.
    ended: bool,
    /// The end of an earlier pause. Grants may still have been spaced after that pause when this
    /// one began.
    spaced_from: Option<Nanos>,
    /// When to check whether the hold is over.
    recheck_at: Nanos,
}

impl Hold {
    fn new(begin: Nanos) -> Hold {
        let (since, opens, recheck_at) = (begin, begin, begin);
        Hold { begin, since, opens, keeps_permits: true, ended: false, spaced_from: None, recheck_at }
    }

    /// Returns a hold for a pause that left all keys empty at `at`.
    fn emptied_at(at: Nanos) -> Hold {
        Hold { keeps_permits: false, ended: true, ..Hold::new(at) }
    }

    /// Returns the rest of the pause.
    fn rest(&self) -> Standstill {
        Standstill { from: self.since, to: self.opens, keeps_permits: self.keeps_permits }
    }

    /// Returns the time from which grants are spaced after the pause, if the pause ends at `end`
    /// and leaves no key empty.
    pub(crate) fn spaced_from(&self, end: Nanos) -> Option<Nanos> {
        Some(self.spaced_from?.saturating_add(end.saturating_since(self.begin)))
    }

    /// Returns the time from which the grants of a part are spaced after the pause, if the pause
    /// ends at `end`.
    fn spaces(&self, part: &dyn Part, end: Nanos) -> Option<Nanos> {
        if part.stands_still() {
            return None;
        }
        if !self.keeps_permits {
            return Some(end);
        }
        let from = self.spaced_from.filter(|from| part.spaced_until(*from) > self.begin);
        from.and_then(|_| self.spaced_from(end))
    }

    /// Returns when `permits` permits have accrued after the pause, in the parts that space their
    /// grants.
    fn paced<P: Policy>(&self, policy: &P, state: &P::State, permits: u64) -> Nanos {
        let mut at = self.opens;
        policy.each_part(state, None, &mut |part| {
            if let Some(from) = self.spaces(part, self.opens) {
                at = at.max(part.accrued_at(from, permits).min(part.spaced_until(from)));
            }
        });
        at
    }

    /// Returns when a request for `n` permits is due.
    pub(crate) fn due<P: Policy>(&self, policy: &P, state: &P::State, n: u32) -> Nanos {
        let at = self.paced(policy, state, n.into());
        let due = policy.ready_at(state, at, 0, n).max(at);
        if self.ended {
            return due;
        }
        match policy.forecast_pause(state, self.rest()) {
            Some(mut forecast) => due.max(policy.predict(state, &mut forecast, n)),
            None => due,
        }
    }

    /// Refuses a request that is not due.
    pub(crate) fn refuse<P: Policy>(
        &self,
        policy: &P,
        state: &P::State,
        now: Nanos,
        n: u32,
    ) -> Result<(), Refusal> {
        policy.check(n)?;
        let retry_after = self.due(policy, state, n).saturating_since(now);
        match retry_after {
            Nanos::ZERO => Ok(()),
            _ if now < self.opens => Err(Refusal::Paused { retry_after }),
            _ => Err(limited(retry_after, Nanos::ZERO)),
        }
    }

    /// Returns the status of a state.
    pub(super) fn status<P: Policy>(&self, policy: &P, state: &P::State, now: Nanos) -> Status {
        let &Hold { opens, ended, .. } = self;
        let status = policy.status(state, now);
        let stands_still = policy.full_after_pause(state, self.rest()).filter(|_| !ended);
        let full_at = stands_still.unwrap_or(status.full_at).max(self.paced(policy, state, u64::MAX));
        let mut most = if ended { status.available } else { 0 };
        policy.each_part(state, None, &mut |part| {
            if !part.stands_still() {
                most = most.min(part.accrued_between(opens, now));
            }
        });
        let next_at = self.due(policy, state, 1);
        let status = PolicyStatus { available: most, next_at, full_at, ..status };
        let paused_for = opens.saturating_since(now).as_duration();
        Status { paused_for, ..Status::new(status, policy.rate(), now) }
    }
}

/// Returns the time until which grants are spaced after a pause that ended at `from`. A window
/// policy spaces them until it would be full.
fn spaced_until<P: Policy>(policy: &P, state: &P::State, from: Nanos) -> Nanos {
    Hold::emptied_at(from).paced(policy, state, u64::MAX)
}

/// Returns how many permits each part of a state has.
fn available<P: Policy>(policy: &P, state: &P::State, at: Nanos) -> Vec<u64> {
    let mut available = Vec::with_capacity(P::PARTS);
    policy.each_part(state, None, &mut |part| available.push(part.status(at).available));
    available
}

/// Returns the state of a key that was empty at `empty`, if that state has less at `at` than a new
/// key. Before `empty`, it has less.
fn less_than_new<P: Policy>(policy: &P, empty: Nanos, at: Nanos) -> Option<P::State> {
    let at = at.max(empty);
    let (emptied, new) = (policy.restart(empty), policy.restart(at));
    let has_less = || {
        let [fewer, more] = [&emptied, &new].map(|state| available(policy, state, at));
        // At a rate of zero none of the permits is available, and only a full state is full.
        let [later, sooner] = [&emptied, &new].map(|state| policy.status(state, at).full_at);
        fewer.iter().zip(more).any(|(fewer, more)| *fewer < more) || later == Nanos::MAX && sooner < later
    };
    let is_less = policy.pause(&emptied, Standstill::end(empty)).is_some() && has_less();
    is_less.then_some(emptied)
}

/// Returns the state of a key that a pause left empty at `empty`.
fn emptied_state<P: Policy>(policy: &P, empty: Nanos) -> P::State {
    let state = policy.restart(empty);
    policy.pause(&state, Standstill::end(empty));
    state
}

fn earlier(time: Nanos, by: Nanos) -> Nanos {
    Nanos::new(time.as_u64().saturating_sub(by.as_u64()))
}

/// Returns since when a key was empty that has as many permits at `at` as a state: since `about`. A
/// bucket that is refilled in steps may have one step more, or less, since then: the time is one
/// more step earlier or later. If no such time has just as many permits, the key has fewer. A time
/// that was rounded may have one permit more than the next nanosecond.
fn empty_since<P: Policy>(policy: &P, state: &P::State, at: Nanos, about: Nanos) -> Nanos {
    let step = Nanos::from_duration(policy.rate().period());
    let has = available(policy, state, at);
    let compares = |empty: Nanos, is: fn(&u64, &u64) -> bool| {
        let emptied = available(policy, &emptied_state(policy, empty), at);
        emptied.iter().zip(&has).all(|(emptied, has)| is(emptied, has))
    };
    let later = |by| about.saturating_add(by).min(at);
    let times = [about, later(Nanos::new(1)), later(step), earlier(about, step)];
    let with = |is| times.into_iter().find(|empty| compares(*empty, is));
    with(u64::eq).or_else(|| with(u64::le)).unwrap_or(at)
}

/// Returns whether a key may be forgotten, where a pause left all keys empty at `empty`: a new key
/// would have no more permits, and after a pause no fewer either.
pub(super) fn may_forget<P: Policy>(policy: &P, state: &P::State, at: Nanos, empty: Option<Nanos>) -> bool {
    policy.is_fresh(state, at) && empty.is_none_or(|empty| less_than_new(policy, empty, at).is_none())
}

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    /// Locks a shard for reading. First ends the pause of the shard if that pause is over.
    pub(super) fn current<'a>(&self, lock: &'a Locked<K, P, C>) -> ShardedLockReadGuard<'a, Shard<K, P, C>> {
        let shard = read(lock);
        if shard.hold().is_none_or(|hold| hold.recheck_at > self.clock.now()) {
            return shard;
        }
        // The hold ends under the exclusive lock, and the state of the shard is read again.
        drop(shard);
        self.end_hold(lock);
        read(lock)
    }

    #[cold]
    fn end_hold(&self, lock: &Locked<K, P, C>) {
        let mut deferred = Deferred::new();
        self.advance(&mut write(lock), self.clock.now(), &mut deferred);
        // No lock of a shard is held here, because this wakes tasks.
        drop(deferred);
    }

    /// Advances the states of a hold to `now`, and ends the hold if it is over.
    pub(super) fn advance(&self, shard: &mut Shard<K, P, C>, now: Nanos, deferred: &mut Deferred) {
        let Some(&hold) = shard.hold() else { return };
        let Hold { begin, since, opens, keeps_permits, .. } = hold;
        let (to, ends) = (now.min(opens).max(since), opens <= now && !hold.ended);
        if to > since || ends {
            let stop = Standstill { from: since, to, keeps_permits: keeps_permits || !ends };
            for (_, policy, state) in shard.entries().iter() {
                deferred.run(|| policy.pause(state, stop));
            }
        }
        let mut next = Some(Hold { since: to, ..hold });
        if ends {
            let from = if keeps_permits { hold.spaced_from(opens) } else { Some(opens) };
            shard.resumes_at(begin, opens, !keeps_permits, from, deferred);
            next = from.map(Hold::emptied_at);
        }
        if let Some(spaced) = next.as_mut().filter(|hold| hold.ended && hold.recheck_at <= now) {
            let from = spaced.opens;
            let recheck_at = deferred.run(|| {
                let unknown = spaced_until(&*shard.policy, &shard.policy.restart(from), from);
                let known =
                    shard.entries().iter().map(|(_, policy, state)| spaced_until(policy, state, from));
                known.fold(unknown, Nanos::max)
            });
            spaced.recheck_at = recheck_at.unwrap_or(from);
        }
        let next = next.filter(|hold| !hold.ended || hold.recheck_at > now);
        shard.set_hold(next);
        if next.is_none() {
            shard.forget_spacing();
        }
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Locks the shard of a hash for reading, like [`current`](Table::current).
    pub(super) fn read_current(&self, hash: u64) -> ShardedLockReadGuard<'_, Shard<K, P, C>> {
        self.current(self.shard(hash))
    }

    /// Pauses all keys.
    pub(crate) fn pause(&self, pause: Pause) {
        let until = pause.end(self.clock.now());
        let mut deferred = Deferred::new();
        let remaining = {
            let _one_at_a_time = lock(&self.changing);
            let now = self.clock.now();
            if until <= now {
                return;
            }
            let mut later = false;
            for lock in &self.shards {
                let shard = &mut *write(lock);
                let now = self.now_or(now, &mut deferred);
                self.advance(shard, now, &mut deferred);
                let new = Hold { spaced_from: shard.spaced_from(), ..Hold::new(now) };
                let mut hold = shard.hold().copied().filter(|hold| !hold.ended).unwrap_or(new);
                later |= hold.opens < until;
                hold.opens = hold.opens.max(until);
                hold.keeps_permits &= pause.keeps_permits;
                hold.recheck_at = hold.opens;
                shard.set_hold(Some(hold));
                for (_, KeyLimiter { limiter, .. }) in shard.all_limiters() {
                    deferred.run_with(|deferred| {
                        limiter.shared.pause_with_all(now, until, pause.keeps_permits, deferred)
                    });
                }
            }
            deferred.run_with(|deferred| {
                self.overflow.limiter.shared.pause_with_all(now, until, pause.keeps_permits, deferred)
            });
            later.then(|| until.saturating_since(now).as_duration())
        };
        self.end_and_report(deferred, remaining, |events, remaining| events.paused(remaining));
    }

    /// Ends the pauses of all keys. Returns whether all keys were paused.
    pub(crate) fn resume(&self) -> bool {
        let mut deferred = Deferred::new();
        let mut paused = false;
        {
            let _one_at_a_time = lock(&self.changing);
            let now = self.clock.now();
            for lock in &self.shards {
                let shard = &mut *write(lock);
                let now = self.now_or(now, &mut deferred);
                self.advance(shard, now, &mut deferred);
                if let Some(&hold) = shard.hold().filter(|hold| !hold.ended) {
                    paused = true;
                    // A window regains permits in real time. The permits that it regained during
                    // the pause do not count.
                    for (_, policy, state) in shard.entries().iter().filter(|_| !hold.keeps_permits) {
                        let keep_permits = |part: &dyn Part| {
                            if !part.stands_still() {
                                part.keep_at_most(now, part.status(hold.begin).available);
                            }
                        };
                        deferred.run(|| policy.each_part(state, None, &mut |part| keep_permits(part)));
                    }
                    let from = hold.spaced_from(now);
                    shard.resumes_at(hold.begin, now, false, from, &mut deferred);
                    shard.set_hold(from.map(Hold::emptied_at));
                }
                for (_, KeyLimiter { limiter, .. }) in shard.all_limiters() {
                    deferred.run_with(|deferred| limiter.shared.resume_with_all(now, deferred));
                }
            }
            deferred.run_with(|deferred| self.overflow.limiter.shared.resume_with_all(now, deferred));
        }
        self.end_and_report(deferred, paused.then_some(()), |events, ()| events.resumed());
        paused
    }

    /// Runs the deferred work, then reports the event if there is one, even if a waker panics in
    /// between. No lock of a shard is held here, because this wakes tasks.
    fn end_and_report<E>(&self, deferred: Deferred, event: Option<E>, send: impl FnOnce(&dyn Events, E)) {
        let mut panic = None;
        run(&mut panic, || drop(deferred));
        if let Some((event, events)) = event.zip(self.observer_of_all()) {
            run(&mut panic, || report(&**events, |events| send(events, event)));
        }
        resume_panic(panic);
    }
}

impl<K, P: Policy + Clone, C: Timer> Shard<K, P, C> {
    /// Returns when a pause left all keys empty, if a pause did.
    pub(super) fn emptied(&self) -> Option<Nanos> {
        self.more.as_ref()?.emptied
    }

    fn spaced_from(&self) -> Option<Nanos> {
        self.more.as_ref()?.spaced_from
    }

    /// Records the end of a pause during which time stood still since `begin`. The time since the
    /// keys were empty moves with the pause. Grants are spaced from `spaced_from`.
    fn resumes_at(
        &mut self,
        begin: Nanos,
        at: Nanos,
        emptied: bool,
        spaced_from: Option<Nanos>,
        deferred: &mut Deferred,
    ) {
        let policy = self.policy.clone();
        let moved = |empty: Nanos| empty.saturating_add(at.saturating_since(begin));
        let later = |empty: Nanos| {
            let stood_still = emptied_state(&*policy, empty);
            policy.pause(&stood_still, Standstill::keeping(begin, at));
            empty_since(&*policy, &stood_still, at, moved(empty))
        };
        if let Some(more) = &mut self.more {
            more.emptied = match more.emptied {
                _ if emptied => Some(at),
                // If the policy panics, the keys are still not full.
                Some(empty) => deferred.run(|| later(empty)).or(Some(moved(empty))),
                None => None,
            };
            more.spaced_from = spaced_from;
        }
    }

    /// Converts the time at which a pause left all keys empty to the terms that replace the terms
    /// of this shard at `at`. `change` converts a state, and returns the new policy. Keys with
    /// plans share that time, so if a shard has plans the time never becomes an earlier one.
    pub(super) fn convert_emptied(&mut self, at: Nanos, change: impl FnOnce(&P::State) -> P) {
        let Some(empty) = self.emptied().filter(|empty| *empty <= at) else { return };
        let state = emptied_state(&*self.policy, empty);
        // In a pause time stands still, until `resumes_at` moves the time.
        let begin = self.hold().filter(|hold| !hold.ended).map_or(at, |hold| hold.begin);
        self.policy.pause(&state, Standstill::keeping(begin, at));
        let policy = change(&state);
        let full_at = |state: &P::State| {
            let mut times = Vec::with_capacity(P::PARTS);
            policy.each_part(state, None, &mut |part| {
                times.extend(part.stands_still().then(|| part.status(at).full_at));
            });
            times
        };
        let (changed, new) = (full_at(&state), full_at(&emptied_state(&policy, at)));
        // The part with the latest time decides, so that no part has more permits.
        let since = changed.into_iter().zip(new).map(|times| match times {
            // Nothing accrues.
            (_, Nanos::MAX) => at,
            (full_at, if_empty) if full_at > at => earlier(at, if_empty.saturating_since(full_at)),
            (_, if_empty) => earlier(at, if_empty.saturating_since(at)).min(empty),
        });
        if let (Some(since), Some(more)) = (since.max(), &mut self.more) {
            let since = earlier(empty_since(&policy, &state, at, since), at.saturating_since(begin));
            more.emptied = Some(if more.planned.is_some() { since.max(empty) } else { since });
        }
    }

    /// Returns the pause with which a new key starts, if the key is added now.
    pub(super) fn hold_of_new(&self, policy: &P, now: Nanos) -> Option<Hold> {
        if let Some(&hold) = self.hold() {
            // The state of the key is created as of the beginning of the hold.
            return Some(Hold { since: hold.begin, ..hold });
        }
        let from = self.spaced_from()?;
        let until = spaced_until(policy, &policy.restart(from), from);
        (now < until).then_some(Hold::emptied_at(from))
    }

    /// Returns the state of a key that is added while no pause holds.
    pub(super) fn start(&self, policy: &P, at: Nanos) -> P::State {
        self.emptied().and_then(|empty| less_than_new(policy, empty, at)).unwrap_or(policy.restart(at))
    }

    /// Forgets when a pause left all keys empty, because each key is new again. Keys with plans are
    /// not.
    pub(super) fn forget_empty(&mut self) {
        if let Some(more) = self.more.as_mut().filter(|more| more.planned.is_none()) {
            more.emptied = None;
        }
    }

    /// Forgets from when grants are spaced after a pause. With another rate, they could be spaced
    /// again. Keys with plans may still be spaced.
    fn forget_spacing(&mut self) {
        if let Some(more) = self.more.as_mut().filter(|more| more.planned.is_none()) {
            more.spaced_from = None;
        }
    }

    /// Forgets when a pause left all keys empty, if a new key is full by now. Call this before the
    /// rate changes: with the new rate, the key could be full later. Keys with plans may not be
    /// full yet.
    pub(super) fn forget_emptied(&mut self, at: Nanos) {
        let is_full = |empty| less_than_new(&*self.policy, empty, at).is_none();
        if self.hold().is_none()
            && self.emptied().is_some_and(is_full)
            && let Some(more) = &mut self.more
            && more.planned.is_none()
        {
            more.emptied = None;
        }
    }

    /// Lets the next call check whether the hold is over, because the rate has changed.
    pub(super) fn recheck_hold(&mut self) {
        if let Some(hold) = self.hold_mut() {
            hold.recheck_at = hold.opens;
        }
    }
}

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Starts with the pause of all keys, as if the limiter had existed before. Runs no waker,
    /// because no request waits yet.
    pub(crate) fn begin_in_hold(&self, hold: Hold) {
        let Hold { begin, since, ended, spaced_from, .. } = hold;
        let Single { policy, state } = &self.rule;
        // During the pause, grants are spaced as before it.
        let before = Hold { keeps_permits: !ended, spaced_from, ..hold };
        let mut paces = Vec::new();
        let mut part_index = 0;
        policy.each_part(state, None, &mut |part| {
            paces.extend(before.spaces(part, since).map(|from| (part_index, from)));
            part_index += 1;
        });
        let mut line = lock(&self.line);
        line.begin_spaced(paces);
        if !ended {
            line.begin_paused(&self.rule, begin, hold.rest());
        }
        self.store_gate_word(&line);
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Pauses a key limiter together with all keys, at `at`. The caller holds the lock of a shard:
    /// user code is left in `deferred`.
    fn pause_with_all(self: &Arc<Self>, at: Nanos, until: Nanos, keeps: bool, deferred: &mut Deferred) {
        self.with_all(at, deferred, |line, visit| {
            let (changed, _) = line.pause(visit.rule, until, keeps);
            if changed {
                self.lateness.clear();
                self.retime(line, visit);
            }
        });
    }

    /// Resumes with all keys, like [`pause_with_all`](Shared::pause_with_all).
    fn resume_with_all(self: &Arc<Self>, at: Nanos, deferred: &mut Deferred) {
        self.with_all(at, deferred, |line, visit| {
            if line.resume(visit.rule) {
                self.retime_composites(line, visit);
            }
        });
    }
}
