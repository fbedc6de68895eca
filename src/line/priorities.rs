//! The classes of a queue: one for each priority that has waiters, the highest priority first.
//!
//! The queue itself is linked through its entries. A class records its last entry, so that a
//! newcomer finds its position without visiting the waiters, and the sum of its entries, so that
//! the newcomer's due time can be computed. There are as many classes as different priorities in
//! the queue, at most 256. They are a sorted list with binary search, and it keeps its memory while
//! no request waits.

use crate::line::sizes::Sizes;

/// No entry.
pub(crate) const NO_ENTRY: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Class<Ahead> {
    pub(crate) priority: i8,
    /// The last entry.
    pub(crate) last: u32,
    pub(crate) len: usize,
    /// The requests of this class, summed.
    pub(crate) ahead: Ahead,
    /// The requests of this class, counted by what they ask for.
    pub(crate) sizes: Sizes,
    /// The number of waiters that are refused if they are due too late.
    pub(crate) with_deadline: usize,
}

#[derive(Debug)]
pub(crate) struct Priorities<Ahead>(Vec<Class<Ahead>>);

impl<Ahead: Default> Priorities<Ahead> {
    pub(crate) fn new() -> Self {
        Priorities(Vec::new())
    }

    /// Returns all classes, the highest priority first.
    pub(crate) fn all(&self) -> &[Class<Ahead>] {
        &self.0
    }

    /// Returns the classes that go before a newcomer of this priority.
    pub(crate) fn before(&self, priority: i8) -> &[Class<Ahead>] {
        &self.0[..self.count_before(priority)]
    }

    /// Returns the classes that a newcomer of this priority goes before.
    pub(crate) fn behind(&self, priority: i8) -> &[Class<Ahead>] {
        &self.0[self.count_before(priority)..]
    }

    /// Returns the last entry that goes before a newcomer of this priority.
    pub(crate) fn last_before(&self, priority: i8) -> u32 {
        self.before(priority).last().map_or(NO_ENTRY, |class| class.last)
    }

    fn count_before(&self, priority: i8) -> usize {
        self.0.partition_point(|class| class.priority >= priority)
    }

    /// Returns the class of a priority. Creates it if no waiter has that priority.
    pub(crate) fn class(&mut self, priority: i8) -> &mut Class<Ahead> {
        let count = self.count_before(priority);
        let at = match count.checked_sub(1) {
            Some(last) if self.0[last].priority == priority => last,
            _ => {
                let class = Class {
                    priority,
                    last: NO_ENTRY,
                    len: 0,
                    ahead: Ahead::default(),
                    sizes: Sizes::default(),
                    with_deadline: 0,
                };
                self.0.insert(count, class);
                count
            }
        };
        &mut self.0[at]
    }

    /// Removes a class without entries.
    pub(crate) fn forget(&mut self, priority: i8) {
        self.0.retain(|class| class.priority != priority);
    }

    /// Weighs all classes anew, if their sizes determine their weights.
    pub(crate) fn weigh(&mut self, weigh: impl Fn(&Sizes) -> Option<Ahead>) {
        for class in &mut self.0 {
            weigh(&class.sizes).into_iter().for_each(|ahead| class.ahead = ahead);
        }
    }
}
