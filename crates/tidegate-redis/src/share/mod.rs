//! The shares of a process in its limits, while the store is away.
//!
//! With *n* processes, a process grants an *n*-th of each limit by itself. It keeps its shares by
//! limit and tag, for all limiters of the store together, in bounded memory: a program that makes a
//! limiter for each request grants no more than a program that keeps its limiters.
//!
//! # How much a share has at first
//!
//! A process does not know what the other processes were granted before the store went away, and
//! its own last reply may be old. Nor does it know when the store is back with its state. So in the
//! first period of an outage permits have two sources: the store, which grants at most the limit
//! *L* in that period, before and after the outage together, whatever the shares do; and the
//! shares. A share that begins within a period of the first request that this process decided in
//! the outage, or of the last time that the store booked for a request of this process, has an
//! *n*-th of an *n*-th, rounded down:
//!
//! > granted in the period ≤ *L* + *n* · *L* / *n*² = *L* · (1 + 1/*n*).
//!
//! No larger share, computed from what the last reply left, meets this bound: if *n* - 1 processes
//! learned early that nearly all permits are left, and the last process took them all, an *n*-th
//! each would grant nearly the limit again.
//!
//! From the next period on a share has its *n*-th, so that all shares together grant the limit:
//!
//! | policy | the period | the share then |
//! |---|---|---|
//! | `fixed_window` | the window, by the last known time of the server's clock | limit / *n* in each window |
//! | `sliding_window`, `sliding_estimate`, `sliding_log` | the length of a window | limit / *n* in each |
//! | `token_bucket`, `leaky_bucket`, `smooth_bursty` | the time in which an unused share fills | begins with burst / *n*², refills at rate / *n* up to burst / *n* |
//!
//! The permits that a share lacks in the first period are its *reduction*.
//!
//! The share of a `smooth_bursty` is a token bucket. Otherwise each process would grant a large
//! request at once, for which its next request pays.
//!
//! While requests of this process wait for bookings at the store, the store continues to grant, up
//! to the bookings that it made for other processes behind these. A process does not know those
//! bookings, and its own requests may have been booked long before the store went away. So from the
//! first request that it decides in the outage, it assumes that the store is booked as far ahead as
//! the last of its own requests had to wait. The reduction of its share counts as of that time: the
//! first period ends a period after it, and nothing accrues in a bucket before it, even for
//! requests that wait in the share. A bucket that refills in steps has its first permits after the
//! next step behind it, which may come at once: the steps of a share begin with the share.
//!
//! From the second period on a share has at least one permit: for a limit below *n* permits each
//! process grants one. In the first period the shares of a limit below *n*² have none.
//!
//! When a line is dropped, its last booked time applies to all shares of the process, because a
//! line that is made later for the same tag does not know it.
//!
//! # One outage after another
//!
//! Each outage has its own first period: it begins with the first request that is decided without
//! the store. Until then the store may have granted permits to other processes. A share that
//! began in an earlier outage begins again. A bucket, which has refilled meanwhile, keeps no more
//! than a share has at first. A bucket that refills in steps has that amount after its next step,
//! which may come at once.
//!
//! A sliding window uses its reduction since an earlier outage for this outage as well, until an
//! eighth of a period or a cell is left of it, because the reduction ends with a cell. Then the
//! window has a reduction for another period, and no permits while both count. A single late call
//! is an outage. If each late call reduced the share for a period, the share would have no permits.
//!
//! # Memory
//!
//! Once a minute the process forgets each tag whose share is full again (as new) and in its second
//! period or a later one.
//!
//! # Another number of processes, or another policy
//!
//! A process has a share of a limit for each policy and each number of processes. When the requests
//! of a tag change from one share to another, what any share granted in its last period counts as
//! granted of the other one. Otherwise each change would grant an *n*-th of the limit once more.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tidegate::{
    AllOf, AllRefusal, AnyPolicy, Clock, DefaultClock, KeyedAllOf, KeyedRateLimiter, Nanos, PolicyConfig,
    Refusal, Status,
};
use tokio::time::Instant;

use crate::error::BuildError;
use crate::lock::lock;
use crate::terms::{Kind, Numbers, Terms, duration};

mod bucket;
mod part;
mod period;
mod silence;
mod tidy;

use part::{by_wall, part_of};
use period::Period;
pub(crate) use silence::Silence;
pub(crate) use tidy::TIDY_INTERVAL;

/// The most tags of one limit that have a share at one time. Further tags are refused.
const MAX_TAGS: usize = 65_536;

/// How often a full table of beginnings is searched for room, at most.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// The most shares with different names, policies or numbers of processes.
const MAX_SHARES: usize = 1024;

/// The shares of this process.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By the name of the limit.
    limits: Mutex<HashMap<String, Limit>>,
    /// The clock of all shares. It is made with the first share, in the runtime of a request.
    clock: OnceLock<DefaultClock>,
    /// The last time that the store booked for a line that was dropped.
    booked_till: Mutex<Option<Instant>>,
    /// Whether a task checks for shares to forget.
    is_tidied: AtomicBool,
}

/// The shares of all limits of one name.
#[derive(Debug, Default)]
struct Limit {
    shares: Vec<Arc<Share>>,
    /// The share that each tag used last, while there are several and if it is known.
    used: HashMap<String, Weak<Share>>,
}

/// What a process knows about the server of a limit when it decides a request without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    /// How many processes share the limits.
    pub(crate) processes: NonZeroU32,
    /// When the server replied last.
    pub(crate) answered: Instant,
    /// When this process decided the first request in this outage. The shares of some tags begin
    /// later, or were forgotten. The bookings of the store do not lie further ahead of them for
    /// that reason.
    pub(crate) decides_since: Instant,
    /// How long ago this process decided its first request in this outage, or the last booked time
    /// passed.
    pub(crate) silence: Duration,
    /// The Unix time by the server's clock, or by that of this process if the former is unknown.
    pub(crate) time: Duration,
}

/// The last time for which the store booked permits for requests of a line: it lies ahead, or has
/// passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBooking {
    pub(crate) ahead: Duration,
    pub(crate) ago: Duration,
    /// How far ahead the store booked that time.
    pub(crate) wait: Duration,
}

impl LastBooking {
    /// The value for a line that has no booking.
    pub(crate) const NONE: LastBooking =
        LastBooking { ahead: Duration::ZERO, ago: Duration::MAX, wait: Duration::ZERO };

    /// Returns how far ahead the store may have booked for all processes, or how long ago its
    /// bookings ended. The store replied last `answered_ago` ago, and this process has decided
    /// without it for `decides_for`. While requests of this line waited, other processes booked
    /// behind them, and this process does not know until when.
    fn of_all(self, answered_ago: Duration, decides_for: Duration) -> (Duration, Duration) {
        match self.ago < answered_ago {
            true => {
                let ahead = self.ahead.max(self.wait.saturating_sub(decides_for));
                let ago =
                    if ahead.is_zero() { decides_for.saturating_sub(self.wait) } else { Duration::ZERO };
                (ahead, ago.min(self.ago))
            }
            false => (self.ahead, self.ago),
        }
    }
}

/// The share of a limit in one policy, for each tag.
#[derive(Debug)]
struct Share {
    /// The policy of the whole limit.
    policy: String,
    processes: NonZeroU32,
    tags: KeyedRateLimiter<String, AnyPolicy>,
    /// The reduction: how many permits a share lacks at first.
    less: u32,
    /// The first period.
    first: Period,
    numbers: Numbers,
    /// When it was made. The steps of a bucket begin then.
    made: Instant,
    /// The last beginning of each tag's share, if its first period may still last. The lock is held
    /// while a full share begins.
    begun: Mutex<HashMap<String, ShareStart>>,
    /// When `begun` was last searched for room.
    searched: Mutex<Option<Instant>>,
}

/// When a share began, and after what time the store grants no more of its bookings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShareStart {
    at: Instant,
    after: Instant,
    /// The reduction.
    less: u32,
}

impl ShareStart {
    /// Returns the time as of which the share has its reduction.
    fn debited(self) -> Instant {
        self.at.max(self.after)
    }
}

impl Shares {
    /// Notes the bookings of a line that is dropped. The next line of its tag does not know what
    /// was booked.
    pub(crate) fn note(&self, LastBooking { ahead, ago, .. }: LastBooking) {
        let now = Instant::now();
        let till = now.checked_add(ahead).and_then(|at| at.checked_sub(ago));
        let mut last = lock(&self.booked_till);
        *last = till.max(*last);
    }

    /// Returns the limiter of this process only, for one tag.
    pub(crate) fn limiter<'a>(
        &self,
        tag: &str,
        limits: impl Iterator<Item = (&'a str, &'a PolicyConfig)>,
        outage: Outage,
        booked: &dyn Fn() -> LastBooking,
    ) -> Result<AllOf, AllRefusal> {
        let (clock, wall) = self.clock();
        let since_booked = lock(&self.booked_till).map_or(Duration::MAX, |till| till.elapsed());
        let silence = outage.silence.min(since_booked);
        let outage = Outage { silence, ..outage };
        let booked = || booked().of_all(outage.answered.elapsed(), outage.decides_since.elapsed());
        let unavailable = || AllRefusal::from(Refusal::Unavailable { retry_after: Nanos::MAX });
        let mut all: Option<KeyedAllOf<str>> = None;
        for (name, config) in limits {
            let (share, others) =
                self.share(tag, name, config, outage, (clock, wall)).ok_or_else(unavailable)?;
            share.begin(tag, outage, &booked, &others);
            if !others.is_empty() {
                self.note_use(tag, name, &share);
            }
            all = Some(match all {
                None => KeyedAllOf::new(name, &share.tags),
                Some(all) => all.with_keyed(name, &share.tags),
            });
        }
        all.ok_or_else(unavailable)?.limiter(tag)
    }

    /// Returns the Unix time by the clock of the shares.
    pub(crate) fn unix_time(&self) -> Duration {
        self.clock().1
    }

    /// Returns the clock of the shares, and the Unix time by it.
    fn clock(&self) -> (&DefaultClock, Duration) {
        let clock = self.clock.get_or_init(DefaultClock::new);
        (clock, clock.unix_time_at_zero() + clock.now().as_duration())
    }

    /// Returns the share of a limit. Also returns the other shares of its name, unless the tag used
    /// this share last.
    fn share(
        &self,
        tag: &str,
        name: &str,
        config: &PolicyConfig,
        outage: Outage,
        clock: (&DefaultClock, Duration),
    ) -> Option<(Arc<Share>, Vec<Arc<Share>>)> {
        let mut limits = lock(&self.limits);
        let policy = config.to_string();
        let is_it = |share: &&Arc<Share>| share.processes == outage.processes && share.policy == policy;
        let known = limits.get(name).and_then(|limit| limit.shares.iter().find(is_it).cloned());
        let share = match known {
            Some(share) => share,
            None if limits.values().map(|limit| limit.shares.len()).sum::<usize>() >= MAX_SHARES => {
                return None;
            }
            None => {
                let share = Arc::new(Share::new(config, policy, outage, clock).ok()?);
                limits.entry(name.to_owned()).or_default().shares.push(share.clone());
                share
            }
        };
        let Limit { shares, used } = limits.get(name)?;
        let is_used = used.get(tag).is_some_and(|used| used.as_ptr() == Arc::as_ptr(&share));
        let others = shares.iter().filter(|other| !is_used && !Arc::ptr_eq(other, &share));
        Some((share.clone(), others.cloned().collect()))
    }

    /// Notes that the requests of a tag use this share from now on, and that what another share
    /// granted was counted.
    fn note_use(&self, tag: &str, name: &str, share: &Arc<Share>) {
        if let Some(Limit { used, .. }) = lock(&self.limits).get_mut(name)
            && (used.len() < MAX_TAGS || used.contains_key(tag))
        {
            used.insert(tag.to_owned(), Arc::downgrade(share));
        }
    }
}

impl Share {
    fn new(
        config: &PolicyConfig,
        policy: String,
        Outage { processes, time, .. }: Outage,
        (clock, wall): (&DefaultClock, Duration),
    ) -> Result<Share, BuildError> {
        let part = part_of(config.clone(), processes);
        let ours = by_wall(part.clone(), time, wall);
        let tags =
            KeyedRateLimiter::with_clock(AnyPolicy::try_from(ours)?, MAX_TAGS, DefaultClock::clone(clock));
        let (whole, part) = (Terms::new(config)?, Terms::new(&part)?);
        let square = u64::from(processes.get()).pow(2);
        let first = (whole.limit / square).min(part.limit);
        let less = u32::try_from(part.limit - first).unwrap_or(u32::MAX);
        let (first, made) = (Period::of(&part.numbers), Instant::now());
        let (begun, searched) = (Mutex::default(), Mutex::default());
        Ok(Share { policy, processes, tags, less, first, numbers: part.numbers, made, begun, searched })
    }

    /// Debits the reduction of a tag's share in the first period of an outage, once in each outage,
    /// and what other shares granted. `booked` returns how far ahead the store had booked permits,
    /// or how long ago its bookings ended.
    fn begin(
        &self,
        tag: &str,
        outage: Outage,
        booked: &dyn Fn() -> (Duration, Duration),
        others: &[Arc<Share>],
    ) {
        // A share counts what the tag was granted of others before it used this share.
        let of_others = others.iter().map(|share| share.granted(tag, outage.time)).max().unwrap_or(0);
        while !self.try_begin(tag, outage, booked, of_others) {}
    }

    /// Makes a step of [`begin`](Share::begin). Returns `false` if another request began the share
    /// meanwhile.
    fn try_begin(
        &self,
        tag: &str,
        outage: Outage,
        booked: &dyn Fn() -> (Duration, Duration),
        of_others: u32,
    ) -> bool {
        let at = Instant::now();
        let began = lock(&self.begun).get(tag).copied();
        let of_this_outage = began.filter(|began| began.at >= outage.answered);
        // The store grants permits up to this time.
        let (ahead, ago) = match of_this_outage {
            Some(ShareStart { after, .. }) => {
                (after.saturating_duration_since(at), at.saturating_duration_since(after))
            }
            None => booked(),
        };
        let outage = Outage { silence: outage.silence.min(ago), ..outage };
        let is_first = self.first.is_running(outage.silence, outage.time);
        let less = if self.is_reduced(outage.silence, outage.time) { self.less } else { 0 };
        let begins = is_first && (less > 0 || !ahead.is_zero());
        if !begins && of_others == 0 {
            return true;
        }
        let after = of_this_outage.map(|began| began.after).or_else(|| match ahead {
            Duration::ZERO if is_first => at.checked_sub(outage.silence),
            Duration::ZERO => Some(at),
            _ => at.checked_add(ahead),
        });
        let new = ShareStart { at, after: after.unwrap_or(at), less };
        // `status` wakes the requests that are due, so it runs under no lock.
        let status = self.tags.status(tag);
        let is_full = status.available == status.limit;
        let own = self.granted_of(status, began, outage.time);
        let begins = begins && began.is_none_or(|began| !self.is_begun(began, new, is_full, ahead, outage));
        if !begins {
            // An error says that there is no room for the tag, whose requests are then refused.
            _ = self.tags.debit_ahead(tag, of_others.saturating_sub(own), ahead);
            return true;
        }
        let debit = self.debit(status, less, ahead, outage, (of_others, own));
        let begun = lock(&self.begun);
        if begun.get(tag).copied() != began {
            return false;
        }
        // No request waits for a full share, so the debit wakes no request. A share that is not
        // full may begin twice at one time, which is safe.
        let held = is_full.then_some(begun);
        if self.tags.debit_ahead(tag, debit, ahead).is_err() {
            // There is no room for the tag, and its requests are refused.
            return true;
        }
        let mut begun = held.unwrap_or_else(|| lock(&self.begun));
        let is_known = begun.contains_key(tag);
        if !is_known && begun.len() >= MAX_TAGS && self.may_search(at) {
            self.forget_begun(&mut begun, outage.time);
        }
        if is_known || begun.len() < MAX_TAGS {
            begun.insert(tag.to_owned(), new);
        }
        true
    }

    /// Returns whether a full table may be searched for room now. A search takes some milliseconds.
    fn may_search(&self, now: Instant) -> bool {
        let mut searched = lock(&self.searched);
        let may = searched.is_none_or(|at| now.saturating_duration_since(at) >= SEARCH_INTERVAL);
        if may {
            *searched = Some(now);
        }
        may
    }

    /// Returns whether a share that began as `began` does not need to begin again as `new`.
    fn is_begun(
        &self,
        began: ShareStart,
        new: ShareStart,
        is_full: bool,
        ahead: Duration,
        outage: Outage,
    ) -> bool {
        let in_this_outage = began.at >= outage.answered;
        let serves = || {
            let silence = new.debited().saturating_duration_since(began.debited());
            let time = outage.time.saturating_add(ahead);
            self.serves(Outage { silence, time, ..outage }, ahead)
        };
        match self.numbers.kind() {
            Kind::Bucket => in_this_outage,
            // The reduction ends with its window, and does not apply to the next window.
            Kind::Fixed => !is_full && (in_this_outage || serves()),
            Kind::Cells | Kind::Estimate | Kind::Log => in_this_outage || serves(),
        }
    }

    /// Returns how many permits are debited so that a share has a reduction of `less`, and counts
    /// the permits that the tag was granted of other shares and not of this one.
    fn debit(
        &self,
        status: Status,
        less: u32,
        ahead: Duration,
        outage: Outage,
        (of_others, own): (u32, u32),
    ) -> u32 {
        let limit = u32::try_from(status.limit).unwrap_or(u32::MAX);
        let Numbers::Bucket(numbers) = self.numbers else {
            let available = u32::try_from(status.available).unwrap_or(u32::MAX);
            return less.saturating_add(of_others.saturating_sub(own).min(available.saturating_sub(less)));
        };
        // The bucket may add its next step at once, unless the share is new and the store has no
        // bookings ahead.
        let steps_soon = self.made < outage.answered || !ahead.is_zero();
        let step = if steps_soon { bucket::step_of(&numbers) } else { 0 };
        let less = less.saturating_add(of_others.min(limit.saturating_sub(less)));
        less.saturating_add(step).saturating_sub(bucket::missing(&numbers, status, ahead))
    }

    /// Returns whether the reduction of a share since an earlier outage serves for the period that
    /// begins `ahead`. The silence in `outage` is as of then.
    fn serves(&self, outage: Outage, ahead: Duration) -> bool {
        match (self.first, self.numbers) {
            // The first period of any outage ends with the window.
            (Period::Window(..), _) => self.first.is_running(outage.silence, outage.time),
            // Requests that wait get their due times now.
            (Period::For(length), _) if ahead > Duration::ZERO => outage.silence <= length / 8,
            (Period::For(length), Numbers::Fixed { .. }) => outage.silence < length,
            // The reduction ends with a cell.
            (Period::For(length), Numbers::Cells { length: cell, .. }) => {
                outage.silence.saturating_add(duration(cell).max(length / 8)) < length
            }
            (Period::For(length), _) => outage.silence.saturating_add(length / 8) < length,
        }
    }

    /// Returns whether a share has its reduction, if it began so long ago.
    fn is_reduced(&self, began_ago: Duration, time: Duration) -> bool {
        Period::lacking(&self.numbers, self.less).is_running(began_ago, time)
    }

    /// Returns how many permits of this tag were granted in the last period. This wakes the
    /// requests that are due.
    fn granted(&self, tag: &str, time: Duration) -> u32 {
        let began = lock(&self.begun).get(tag).copied();
        self.granted_of(self.tags.status(tag), began, time)
    }

    /// Returns how many permits were granted in the last period of a tag with this status.
    fn granted_of(&self, status: Status, began: Option<ShareStart>, time: Duration) -> u32 {
        let reduced = began.filter(|began| self.is_reduced(began.debited().elapsed(), time));
        let taken = status.limit.saturating_sub(status.available);
        u32::try_from(taken).unwrap_or(u32::MAX).saturating_sub(reduced.map_or(0, |began| began.less))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outage of one of four processes, which decided its first request when the store went
    /// away.
    fn outage(answered: Instant, time: Duration) -> Outage {
        let processes = NonZeroU32::new(4).expect("not zero");
        Outage { processes, answered, decides_since: answered, silence: answered.elapsed(), time }
    }

    fn config(line: &str) -> PolicyConfig {
        line.parse().expect("a configuration")
    }

    /// The server's time in a test that began at `start`.
    fn time(start: Instant) -> Duration {
        Duration::from_secs(1_000_000_000) + start.elapsed()
    }

    /// Returns how many of some requests are granted at once.
    fn granted(
        shares: &Shares,
        config: &PolicyConfig,
        outage: Outage,
        booked: LastBooking,
        requests: usize,
    ) -> usize {
        let is_granted = |_: &usize| {
            let limits = [("calls", config)].into_iter();
            let limiter = shares.limiter("all", limits, outage, &|| booked);
            limiter.is_ok_and(|limiter| limiter.try_acquire().is_ok())
        };
        (0..requests).filter(is_granted).count()
    }

    /// Regression: a configuration that was loaded anew in an outage had a share of its own.
    #[tokio::test(start_paused = true)]
    async fn another_policy_of_a_limit_grants_no_second_share() {
        let (shares, now) = (Shares::default(), Instant::now());
        let taken =
            |line: String| granted(&shares, &config(&line), outage(now, time(now)), LastBooking::NONE, 100);
        assert_eq!(taken("token_bucket 1/min burst 64".into()), 4);
        for per_minute in 2..12 {
            assert_eq!(taken(format!("token_bucket {per_minute}/min burst 64")), 0, "{per_minute}/min");
        }
        // Of a larger policy the share has the rest.
        assert_eq!(taken("token_bucket 1/min burst 128".into()), 4);
        // Another tag has its own share.
        let policy = config("token_bucket 20/min burst 64");
        let other =
            shares.limiter("other", [("calls", &policy)].into_iter(), outage(now, time(now)), &|| {
                LastBooking::NONE
            });
        assert!(other.expect("room").try_acquire_many(4).is_ok());
    }

    /// Regression: this held in the first period of an outage, and in later ones each policy had a
    /// share of its own.
    #[tokio::test(start_paused = true)]
    async fn another_policy_grants_no_second_share_in_later_periods() {
        for (line, minutes) in [
            ("token_bucket 16/min burst {}", 5),
            ("token_bucket {}/min burst {} interval_refill", 3),
            ("sliding_log {}/min", 2),
            ("sliding_window {}/min cells 4", 2),
            ("sliding_estimate {}/min", 3),
            ("fixed_window {}/min at_wall_clock 0s", 2),
            ("fixed_window {}/min from_first_grant", 2),
        ] {
            let (shares, start) = (Shares::default(), Instant::now());
            let taken = |limit: u32| {
                let config = config(&line.replace("{}", &limit.to_string()));
                granted(&shares, &config, outage(start, time(start)), LastBooking::NONE, 100)
            };
            assert_eq!(taken(64), 4, "{line}");
            tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
            assert_eq!(taken(64), 16, "{line}");
            for limit in [68, 72, 76, 80] {
                assert_eq!(taken(limit), 1, "{line}: of {limit} the share is a permit larger");
            }
        }
    }

    /// Regression: only what the first tag of a new policy had been granted before was counted, and
    /// a tag that went back to its former policy had the rest of the former share.
    #[tokio::test(start_paused = true)]
    async fn a_tag_that_changes_its_policy_has_no_second_share() {
        for line in [
            "token_bucket {}/min burst {} interval_refill",
            "sliding_log {}/min",
            "sliding_window {}/min cells 4",
            "sliding_estimate {}/min",
            "fixed_window {}/min at_wall_clock 0s",
            "fixed_window {}/min from_first_grant",
        ] {
            let (shares, start) = (Shares::default(), Instant::now());
            let taken = |tag: &str, limit: u32, requests: usize| {
                let config = config(&line.replace("{}", &limit.to_string()));
                let is_granted = |_: &usize| {
                    let limits = [("calls", &config)].into_iter();
                    let outage = outage(start, time(start));
                    let limiter = shares.limiter(tag, limits, outage, &|| LastBooking::NONE);
                    limiter.is_ok_and(|limiter| limiter.try_acquire().is_ok())
                };
                (0..requests).filter(is_granted).count()
            };
            assert_eq!((taken("alice", 64, 9), taken("bob", 64, 9)), (4, 4), "{line}");
            tokio::time::sleep(Duration::from_secs(180)).await;
            assert_eq!(taken("bob", 64, 10), 10, "{line}");
            // Alice is the first with another policy, in which Bob has a permit more.
            assert_eq!((taken("alice", 68, 99), taken("bob", 68, 99)), (17, 7), "{line}");
            assert_eq!((taken("bob", 64, 99), taken("alice", 64, 99)), (0, 0), "{line}");
            assert_eq!(
                (taken("bob", 72, 99), taken("bob", 68, 99), taken("bob", 80, 99)),
                (1, 0, 2),
                "{line}"
            );
            tokio::time::sleep(Duration::from_secs(180)).await;
            assert_eq!(
                (taken("bob", 72, 9), taken("bob", 80, 99), taken("bob", 72, 99)),
                (9, 11, 0),
                "{line}"
            );
        }
    }

    /// Bug: with a full table the beginning of a share was not noted, so the share began again with
    /// each request.
    #[tokio::test(start_paused = true)]
    async fn a_known_tag_begins_once_in_an_outage_beside_a_full_table() {
        let (shares, config, first) = (Shares::default(), config("sliding_log 160/h"), Instant::now());
        let attempts = |outage| granted(&shares, &config, outage, LastBooking::NONE, 20);
        assert_eq!(attempts(outage(first, time(first))), 10);
        let share = lock(&shares.limits)["calls"].shares[0].clone();
        for i in 1..MAX_TAGS {
            let of_another = lock(&share.begun)["all"];
            lock(&share.begun).insert(i.to_string(), of_another);
        }
        tokio::time::sleep(Duration::from_secs(59 * 60)).await;
        let second = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        attempts(outage(second, time(first)));
        let begun = lock(&share.begun);
        assert!(begun["all"].at > second);
        assert_eq!(begun.len(), MAX_TAGS);
    }

    /// Bug: beside a full table of beginnings that were over, a new tag began again with each
    /// request for up to a minute.
    #[tokio::test(start_paused = true)]
    async fn a_new_tag_begins_once_in_an_outage_beside_a_table_of_others_that_are_over() {
        let (shares, config, first) = (Shares::default(), config("sliding_log 160/h"), Instant::now());
        let attempts = |outage| granted(&shares, &config, outage, LastBooking::NONE, 20);
        for _ in 0..2 {
            assert_eq!(attempts(outage(Instant::now(), time(first))), 10);
            let share = lock(&shares.limits)["calls"].shares[0].clone();
            let of_another = lock(&share.begun).remove("all").expect("it has begun");
            assert!(lock(&share.begun).is_empty());
            for i in 0..MAX_TAGS {
                lock(&share.begun).insert(i.to_string(), of_another);
            }
            tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
        }
        assert_eq!(attempts(outage(Instant::now(), time(first))), 10);
    }

    /// Regression: counting what another share had granted was noted as a beginning, and the next
    /// outage had a whole share in its first period.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_counts_another_begins_in_the_next_outage() {
        for line in ["sliding_log {}/20s", "sliding_window {}/20s cells 4", "sliding_estimate {}/20s"] {
            let (shares, start) = (Shares::default(), Instant::now());
            let taken = |limit: u32, answered, requests| {
                let config = config(&line.replace("{}", &limit.to_string()));
                granted(&shares, &config, outage(answered, time(start)), LastBooking::NONE, requests)
            };
            let until = |seconds| tokio::time::sleep_until(start + Duration::from_secs(seconds));
            assert_eq!(taken(64, start, 100), 4, "{line}");
            until(25).await;
            assert_eq!((taken(64, start, 1), taken(68, start, 1)), (1, 1), "{line}");
            until(30).await;
            let again = taken(68, Instant::now(), 100);
            assert!(again <= 4, "{line}: {again}");
        }
        // The share serves, and counts the other one: its reduction is as old as it was.
        let (shares, start) = (Shares::default(), Instant::now());
        let taken = |limit: u32, answered, requests| {
            let config = config(&format!("sliding_log {limit}/20s"));
            granted(&shares, &config, outage(answered, time(start)), LastBooking::NONE, requests)
        };
        assert_eq!(taken(64, start, 1), 1);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let second = Instant::now();
        assert_eq!((taken(68, second, 3), taken(64, second, 100)), (3, 0));
        tokio::time::sleep(Duration::from_secs(11)).await;
        let third = taken(64, Instant::now(), 100);
        assert!(third <= 4, "{third}");
    }

    /// Regression: the shares of two policies kept each other in memory, and of 1,024 more such
    /// policies the requests were refused.
    #[tokio::test(start_paused = true)]
    async fn the_shares_of_earlier_policies_are_forgotten() {
        let (shares, start) = (Shares::default(), Instant::now());
        for limit in 100..1500 {
            let config = config(&format!("sliding_log {limit}/s"));
            let outage = outage(Instant::now(), time(start));
            assert_eq!(granted(&shares, &config, outage, LastBooking::NONE, 1), 1, "{limit}");
            // Two policies in each period.
            tokio::time::sleep(Duration::from_secs(if limit % 2 == 0 { 0 } else { 2 })).await;
            if limit % 100 == 0 {
                _ = shares.tidy(time(start));
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(shares.tidy(time(start)));
    }

    /// Regression: the waker of a waiting request ran under a lock of the shares.
    #[tokio::test]
    async fn the_waker_of_a_waiting_request_may_make_a_request() {
        const LINES: [&str; 2] = ["token_bucket 60/s burst 60", "token_bucket 64/s burst 64"];

        struct Asks(Arc<Shares>, Outage, std::sync::atomic::AtomicUsize);

        impl std::task::Wake for Asks {
            fn wake(self: Arc<Asks>) {
                self.2.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                granted(&self.0, &config(LINES[0]), self.1, LastBooking::NONE, 1);
            }
        }

        for asked in LINES {
            let (shares, start) = (Arc::new(Shares::default()), Instant::now());
            let (outage, line) = (outage(start, time(start)), config(LINES[0]));
            let limits = [("calls", &line)].into_iter();
            let limiter = shares.limiter("all", limits, outage, &|| LastBooking::NONE).expect("a share");
            let asks = Arc::new(Asks(shares.clone(), outage, 0.into()));
            let waker = std::task::Waker::from(asks.clone());
            // A permit may accrue between the last grant and the wait.
            let _wait = loop {
                let mut wait = Box::pin(limiter.acquire());
                if wait.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending() {
                    break wait;
                }
            };
            // No timer of the runtime fires until this task awaits.
            while start.elapsed() < Duration::from_millis(70) {}
            while asks.2.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                granted(&shares, &config(asked), outage, LastBooking::NONE, 1);
            }
        }
    }

    /// Regression: a bucket continued to refill while the store was back, and a window began with
    /// its whole share when the first period of the earlier outage was over.
    #[tokio::test(start_paused = true)]
    async fn each_outage_has_a_first_period_of_its_own() {
        /// When an outage begins, in seconds; then pairs of the seconds after that at which its
        /// share is asked, and the permits that the share has then.
        type Course = (u64, &'static [(u64, usize)]);
        let first: Course = (0, &[(0, 3)]);
        let rows: [(&str, &[Course]); 13] = [
            ("token_bucket 60/min burst 60", &[first, (30, &[(0, 2), (4, 1), (20, 4)])]),
            ("token_bucket 60/min burst 60", &[first, (80, &[(0, 3), (4, 1), (20, 4)])]),
            ("token_bucket 60/min burst 60 interval_refill", &[first, (50, &[(0, 0), (11, 3), (71, 15)])]),
            ("sliding_log 60/20s", &[first, (5, &[(0, 0), (14, 0), (16, 3)])]),
            ("sliding_log 60/20s", &[first, (14, &[(0, 0), (5, 0), (7, 3)])]),
            ("sliding_log 60/20s", &[first, (25, &[(0, 3), (19, 0), (21, 15)])]),
            ("sliding_window 60/20s cells 4", &[first, (14, &[(0, 0), (5, 0), (12, 3)])]),
            // A reduction that is debited near the end of a cell ends with that cell.
            ("sliding_window 60/20s cells 4", &[first, (29, &[(0, 3)]), (43, &[(0, 0), (3, 3)])]),
            ("sliding_window 60/20s cells 2", &[first, (9, &[(0, 0), (10, 0), (12, 3)])]),
            ("fixed_window 60/20s from_first_grant", &[first, (14, &[(0, 0), (5, 0), (7, 3)])]),
            // The window of the first outage ends in the second one.
            ("fixed_window 60/20s from_first_grant", &[(0, &[(0, 3), (21, 15)]), (30, &[(0, 0), (12, 3)])]),
            ("fixed_window 60/20s at_wall_clock 0s", &[first, (10, &[(0, 0), (9, 0), (11, 15)])]),
            ("fixed_window 60/20s at_wall_clock 0s", &[first, (25, &[(0, 3), (14, 0), (16, 15)])]),
        ];
        for (line, outages) in rows {
            let (config, shares, start) = (config(line), Shares::default(), Instant::now());
            let take_all = |answered: Instant| {
                let time = time(start);
                // Forgetting shares changes no decision.
                _ = shares.tidy(time);
                granted(&shares, &config, outage(answered, time), LastBooking::NONE, 100)
            };
            for (begins, asked) in outages {
                let answered = start + Duration::from_secs(*begins);
                for (after, expected) in *asked {
                    tokio::time::sleep_until(answered + Duration::from_secs(*after)).await;
                    let text = format!("{line}, {after} s after {begins} s");
                    assert_eq!(take_all(answered), *expected, "{text}");
                }
            }
        }
    }

    /// The store grants permits up to the times that it booked, and the share of a process is small
    /// until a period after them, even for requests that wait.
    #[tokio::test(start_paused = true)]
    async fn a_share_is_small_up_to_a_period_behind_booked_instants() {
        /// After how many seconds the share is asked, and how many permits it has then.
        type Course = &'static [(u64, usize)];
        let rows: [(&str, Course); 8] = [
            ("token_bucket 60/min burst 60", &[(0, 0), (30, 0), (50, 3), (54, 1)]),
            // The next step after the last booked time is at 60 s, and the one after it at 120 s.
            (
                "token_bucket 60/min burst 60 interval_refill",
                &[(0, 0), (49, 0), (61, 3), (111, 0), (121, 15)],
            ),
            ("token_bucket 60/20s burst 60 interval_refill", &[(0, 0), (41, 0), (61, 3), (79, 0), (81, 15)]),
            ("sliding_log 60/20s", &[(0, 3), (30, 0), (69, 0), (71, 15)]),
            ("sliding_window 60/20s cells 4", &[(0, 3), (30, 0), (64, 0), (71, 15)]),
            ("fixed_window 60/20s from_first_grant", &[(0, 3), (30, 0), (69, 0), (71, 15), (92, 15)]),
            // The last booked time is in the middle of a window.
            ("fixed_window 60/20s at_wall_clock 0s", &[(0, 3), (30, 0), (59, 0), (61, 15), (81, 15)]),
            ("sliding_estimate 60/20s", &[(0, 3), (30, 0), (59, 0)]),
        ];
        for (line, asked) in rows {
            let (config, shares, start) = (config(line), Shares::default(), Instant::now());
            for (after, expected) in asked {
                tokio::time::sleep_until(start + Duration::from_secs(*after)).await;
                let booked = LastBooking {
                    ahead: Duration::from_secs(50).saturating_sub(start.elapsed()),
                    ago: start.elapsed().saturating_sub(Duration::from_secs(50)),
                    wait: Duration::ZERO,
                };
                let granted = granted(&shares, &config, outage(start, time(start)), booked, 100);
                assert_eq!(granted, *expected, "{line}, after {after} s");
            }
        }
    }

    /// Regression: a share that had been forgotten began again, as far behind the booked times of
    /// this process as at the beginning of the outage. It was small for a while in each minute, and
    /// a window granted it in addition to what it had granted before.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_was_forgotten_does_not_begin_once_more() {
        for line in [
            "token_bucket 60/min burst 60",
            "token_bucket 60/min burst 60 interval_refill",
            "sliding_log 60/20s",
            "sliding_window 60/20s cells 4",
            "sliding_estimate 60/20s",
            "fixed_window 60/20s from_first_grant",
            "fixed_window 60/20s at_wall_clock 0s",
        ] {
            let (config, shares, start) = (config(line), Shares::default(), Instant::now());
            for after in [0, 150, 220, 221] {
                tokio::time::sleep_until(start + Duration::from_secs(after)).await;
                let time = time(start);
                _ = shares.tidy(time);
                let wait = Duration::from_secs(5);
                let elapsed = start.elapsed();
                let (ahead, ago) = (wait.saturating_sub(elapsed), elapsed.saturating_sub(wait));
                let booked = LastBooking { ahead, ago, wait };
                let granted = granted(&shares, &config, outage(start, time), booked, 100);
                match after {
                    0 => assert!(granted <= 3, "{line}: {granted}"),
                    221 => assert!(granted <= 1, "{line}: {granted} beyond the share"),
                    _ => assert_eq!(granted, 15, "{line}, after {after} s"),
                }
            }
        }
    }

    /// Each late call is an outage, even though the store works.
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_late_leave_a_share() {
        for line in ["sliding_log 60/20s", "sliding_window 60/20s cells 4", "token_bucket 3/s burst 60"] {
            let (config, shares, mut sum) = (config(line), Shares::default(), 0);
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let outage = outage(Instant::now(), Duration::ZERO);
                sum += granted(&shares, &config, outage, LastBooking::NONE, 1);
            }
            // Three in a period, and none in an eighth of it.
            assert!(sum >= 7, "{line}: {sum}");
        }
    }

    /// Regression: requests of the process always wait for bookings at the store. Each late call
    /// took what accrues in a share until the last booked time. After a minute of such calls the
    /// share had no permits for ten minutes of an outage.
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_late_in_a_crowd_leave_a_share() {
        for line in [
            "token_bucket 40/s burst 40",
            "token_bucket 40/s burst 40 interval_refill",
            "leaky_bucket 40/s nodelay 39",
            "smooth_bursty 40/s",
        ] {
            let (config, shares) = (config(line), Shares::default());
            let granted = |answered: Instant, ahead: Duration| {
                let outage = outage(answered, Duration::ZERO);
                let ago = if ahead.is_zero() { Duration::MAX } else { Duration::ZERO };
                let limits = [("calls", &config)].into_iter();
                let limiter =
                    shares.limiter("all", limits, outage, &|| LastBooking { ahead, ago, wait: ahead });
                let limiter = limiter.expect("a share");
                (0..100).filter(|_| limiter.try_acquire().is_ok()).count()
            };
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                granted(Instant::now(), Duration::from_secs(1));
            }
            let answered = Instant::now();
            // A step more than a period after the last booked time.
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert_eq!(granted(answered, Duration::ZERO), 10, "{line}");
        }
    }

    /// Regression: a share that was full again began again: with 6 permits after exactly a minute,
    /// and after less than a minute if it was not used up.
    #[tokio::test(start_paused = true)]
    async fn a_bucket_begins_its_share_once() {
        let config = config("token_bucket 100/min burst 100");
        for (at_first, later, rest) in [
            (6, 45_599, 18),
            (6, 59_999, 24),
            (6, 60_000, 25),
            (6, 60_001, 25),
            (1, 45_599, 23),
            (1, 45_600, 24),
            (1, 48_000, 25),
            // A tag that comes late has what it would have in an unused share.
            (0, 45_599, 6),
            (0, 45_600, 25),
        ] {
            let (shares, began) = (Shares::default(), Instant::now());
            let granted = |requests| {
                granted(&shares, &config, outage(began, Duration::ZERO), LastBooking::NONE, requests)
            };
            assert_eq!(granted(at_first), at_first);
            tokio::time::sleep(Duration::from_millis(later)).await;
            assert_eq!(granted(100), rest, "{at_first} and {later} ms");
        }
    }
}
