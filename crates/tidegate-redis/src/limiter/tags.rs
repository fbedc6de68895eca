//! The queues of a keyed limiter: one for each tag in use.
//!
//! A tag is in use while a request for it is decided or waits, or while a handle to its limiter is
//! held. Each of these holds the tag's [`Line`]. The table holds none: when the last holder drops
//! the line, the line is removed from the table. So a process keeps nothing for a tag that is not
//! in use.
//!
//! A line that leases stays for one second after its last request, and for at most one second more,
//! because it knows the demand and the store's last reply. At most 16,384 lines stay in this way:
//! the store decides requests for other tags.
//!
//! # Lock
//!
//! Dropping a line takes the lock of the table. So no line is dropped under this lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate::QueueBounds;

use crate::line::Line;
use crate::lock::lock;
use crate::set::Prepared;

/// How long a line that leases stays without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The most lines that stay.
const MAX_LINGERING: usize = 16_384;

/// A table with at most this many slots does not shrink.
const SMALL: usize = 1024;

#[derive(Default)]
pub(crate) struct Tags {
    table: Mutex<Table>,
    lingering: AtomicUsize,
}

#[derive(Default)]
struct Table {
    lines: HashMap<String, Weak<Line>>,
    bounds: QueueBounds,
    shadow: bool,
    is_closed: bool,
}

impl Table {
    fn lines(&self) -> Vec<Arc<Line>> {
        self.lines.values().filter_map(Weak::upgrade).collect()
    }
}

impl Tags {
    pub(crate) fn new(bounds: QueueBounds) -> Tags {
        Tags { table: Mutex::new(Table { bounds, ..Table::default() }), ..Tags::default() }
    }

    /// Returns the line of a tag. It makes one if the tag is not in use.
    pub(crate) fn line(self: &Arc<Tags>, prepared: &Prepared, tag: &str) -> Arc<Line> {
        let mut table = lock(&self.table);
        if let Some(line) = table.lines.get(tag).and_then(Weak::upgrade) {
            // Relaxed: a hint. A line whose flag is missed here still lives for the request.
            line.is_used.store(true, Ordering::Relaxed);
            return line;
        }
        let tags = self.clone();
        let gone = Box::new(move |tag: &str| tags.forget(tag));
        let line = Line::new(prepared, tag.to_owned(), table.bounds, Some(gone));
        line.set.shadow.store(table.shadow, Ordering::Relaxed);
        if table.is_closed {
            line.close();
        }
        table.lines.insert(tag.to_owned(), Arc::downgrade(&line));
        drop(table);
        if line.leases.is_some() {
            self.keep_alive(&line);
        }
        line
    }

    /// Keeps a line while it is used.
    fn keep_alive(self: &Arc<Tags>, line: &Arc<Line>) {
        struct KeepAlive(Arc<Tags>, Arc<Line>);

        impl Drop for KeepAlive {
            fn drop(&mut self) {
                self.0.lingering.fetch_sub(1, Ordering::Relaxed);
            }
        }

        let keep_alive = KeepAlive(self.clone(), line.clone());
        if self.lingering.fetch_add(1, Ordering::Relaxed) < MAX_LINGERING {
            line.set.store.spawn(Box::pin(async move {
                while keep_alive.1.is_used.swap(false, Ordering::Relaxed) {
                    tokio::time::sleep(IDLE_TIMEOUT).await;
                }
            }));
        }
    }

    /// Removes the line of a tag, which is being dropped.
    fn forget(&self, tag: &str) {
        let mut table = lock(&self.table);
        // Another line may have been made for the tag since then.
        if table.lines.get(tag).is_some_and(|line| line.strong_count() == 0) {
            table.lines.remove(tag);
        }
        let (len, capacity) = (table.lines.len(), table.lines.capacity());
        if capacity > SMALL && len < capacity / 8 {
            table.lines.shrink_to(2 * len);
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.table).lines.len()
    }

    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        let mut table = lock(&self.table);
        table.bounds = bounds;
        let lines = table.lines();
        drop(table);
        lines.iter().for_each(|line| line.set_bounds(bounds));
    }

    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut table = lock(&self.table);
        table.shadow = shadow;
        let lines = table.lines();
        drop(table);
        lines.iter().for_each(|line| line.set.shadow.store(shadow, Ordering::Relaxed));
    }

    pub(crate) fn is_shadow(&self) -> bool {
        lock(&self.table).shadow
    }

    /// Closes all lines, including those made later. Returns whether the table was open, and the
    /// current lines.
    pub(crate) fn close(&self) -> (bool, Vec<Arc<Line>>) {
        let mut table = lock(&self.table);
        let was_open = !std::mem::replace(&mut table.is_closed, true);
        let lines = table.lines();
        drop(table);
        (was_open, lines)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.table).is_closed
    }
}
