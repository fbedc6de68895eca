//! The queues of a keyed limiter: one for each tag in use.
//!
//! A tag is in use while a request for it is decided or waits, or while a handle to its limiter is
//! held. Each of these holds the tag's [`Line`]. When the last holder drops the line, the line is
//! removed from the table. So a process keeps nothing for a tag that is not in use.
//!
//! The table itself holds a line that leases for one second after its last request, and for at most
//! one second more, because the line knows the demand and the store's last reply. At most 16,384
//! lines stay in this way: the store decides requests for other tags. They stay no longer than the
//! keyed limiter: then their leases go back.
//!
//! # Lock
//!
//! Dropping a line takes the lock of the table. So no line is dropped under this lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate::QueueBounds;

use crate::line::Line;
use crate::lock::lock;
use crate::set::Prepared;
use crate::store::Store;

/// How long a line that leases stays without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The most lines that stay.
const MAX_LINGERING: usize = 16_384;

/// A table with at most this many slots does not shrink.
const SMALL: usize = 1024;

#[derive(Default)]
pub(crate) struct Tags(Mutex<Table>);

#[derive(Default)]
struct Table {
    lines: HashMap<String, Weak<Line>>,
    /// The lines that stay although they may not be in use.
    lingering: HashMap<String, Arc<Line>>,
    bounds: QueueBounds,
    shadow: bool,
    is_closed: bool,
}

impl Table {
    fn lines(&self) -> Vec<Arc<Line>> {
        self.lines.values().filter_map(Weak::upgrade).collect()
    }

    /// Notes that a line is requested. Returns whether it stays from now on.
    fn begins_to_linger(&mut self, line: &Arc<Line>) -> bool {
        // Relaxed: the flag is a hint. If it is missed here, the line still lives for the request.
        if line.leases.is_none() || line.is_used.swap(true, Ordering::Relaxed) {
            return false;
        }
        let tag = &line.set.tag;
        if self.lingering.contains_key(tag) {
            return false;
        }
        let begins = self.lingering.len() < MAX_LINGERING;
        if begins {
            self.lingering.insert(tag.clone(), line.clone());
        } else {
            // With the next request it may stay.
            line.is_used.store(false, Ordering::Relaxed);
        }
        begins
    }
}

impl Tags {
    pub(crate) fn new(bounds: QueueBounds) -> Tags {
        Tags(Mutex::new(Table { bounds, ..Table::default() }))
    }

    /// Returns the line of a tag. It makes one if the tag is not in use.
    pub(crate) fn line(self: &Arc<Tags>, prepared: &Prepared, tag: &str) -> Arc<Line> {
        let mut table = lock(&self.0);
        if let Some(line) = table.lines.get(tag).and_then(Weak::upgrade) {
            let begins = table.begins_to_linger(&line);
            drop(table);
            if begins {
                self.keep_alive(&line);
            }
            return line;
        }
        let tags = self.clone();
        let gone = Box::new(move |tag: &str| tags.forget(tag));
        let observers = Arc::new(prepared.observers.of_key());
        let prepared = Prepared { observers, ..prepared.clone() };
        let line = Line::new(&prepared, tag.to_owned(), table.bounds, Some(gone));
        line.set.shadow.store(table.shadow, Ordering::Relaxed);
        if table.is_closed {
            // Closing a line may call an observer, so this thread does not hold the lock. No other
            // thread has the line.
            drop(table);
            line.close();
            return line;
        }
        table.lines.insert(tag.to_owned(), Arc::downgrade(&line));
        let begins = table.begins_to_linger(&line);
        drop(table);
        if begins {
            self.keep_alive(&line);
        }
        line
    }

    /// Keeps a line while it is used.
    fn keep_alive(self: &Arc<Tags>, line: &Arc<Line>) {
        struct KeepAlive {
            tags: Arc<Tags>,
            tag: String,
            /// That of the line.
            is_used: Arc<AtomicBool>,
            store: Store,
        }

        impl Drop for KeepAlive {
            fn drop(&mut self) {
                // A flush that begins now waits for the leases of the line.
                let message = self.store.begin_message();
                drop(self.tags.let_go(&self.tag, &self.is_used));
                drop(message);
            }
        }

        let (tags, tag, store) = (self.clone(), line.set.tag.clone(), line.set.store.clone());
        let keep_alive = KeepAlive { tags, tag, is_used: line.is_used.clone(), store };
        line.set.store.spawn(Box::pin(async move {
            while keep_alive.is_used.swap(false, Ordering::Relaxed) {
                tokio::time::sleep(IDLE_TIMEOUT).await;
            }
        }));
    }

    /// Returns a line that stays no longer. Another line of the tag may stay by now.
    fn let_go(&self, tag: &str, is_used: &Arc<AtomicBool>) -> Option<Arc<Line>> {
        let mut table = lock(&self.0);
        let is_it = table.lingering.get(tag).is_some_and(|line| Arc::ptr_eq(&line.is_used, is_used));
        let line = is_it.then(|| table.lingering.remove(tag)).flatten();
        // With the next request it stays again.
        is_used.store(false, Ordering::Relaxed);
        shrink(&mut table.lingering);
        line
    }

    /// Drops the lines that no longer have a keyed limiter, unless they are in use.
    pub(crate) fn end(&self) {
        let lingering = std::mem::take(&mut lock(&self.0).lingering);
        drop(lingering);
    }

    /// Removes the line of a tag, which is being dropped.
    fn forget(&self, tag: &str) {
        let mut table = lock(&self.0);
        // Another line may have been made for the tag since then.
        if table.lines.get(tag).is_some_and(|line| line.strong_count() == 0) {
            table.lines.remove(tag);
        }
        shrink(&mut table.lines);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).lines.len()
    }

    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        let mut table = lock(&self.0);
        table.bounds = bounds;
        let lines = table.lines();
        drop(table);
        lines.iter().for_each(|line| line.set_bounds(bounds));
    }

    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut table = lock(&self.0);
        table.shadow = shadow;
        let lines = table.lines();
        lines.iter().for_each(|line| line.set.shadow.store(shadow, Ordering::Relaxed));
        drop(table);
    }

    pub(crate) fn is_shadow(&self) -> bool {
        lock(&self.0).shadow
    }

    /// Closes all lines, including those made later. Returns whether the table was open, and the
    /// current lines.
    pub(crate) fn close(&self) -> (bool, Vec<Arc<Line>>) {
        let mut table = lock(&self.0);
        let was_open = !std::mem::replace(&mut table.is_closed, true);
        let lines = table.lines();
        drop(table);
        (was_open, lines)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_closed
    }
}

/// Gives back the memory of a map that has become much smaller.
fn shrink<T>(map: &mut HashMap<String, T>) {
    let (len, capacity) = (map.len(), map.capacity());
    if capacity > SMALL && len < capacity / 8 {
        map.shrink_to(2 * len);
    }
}
