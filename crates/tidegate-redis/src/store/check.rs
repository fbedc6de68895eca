//! [`Store::check`]: whether limiters can work with a store.

use std::sync::Arc;

use redis::Value;

use crate::connection::SELF_TEST;
use crate::error::StoreError;
use crate::key;
use crate::script::Script;
use crate::store::{Deadline, Store};

/// The further commands of the script of permits in use, made after the self-test. `HSET`, the only
/// one that creates a key, comes after every command that may lack a permission (the self-test has
/// made `DEL`), so a missing permission leaves no key.
const IN_USE: &str = "
make('HMGET', KEYS[1], 'field')
make('HGETALL', KEYS[1])
make('HDEL', KEYS[1], 'field')
make('PEXPIRE', KEYS[1], 1)
make('HSET', KEYS[1], 'field', 1)
make('DEL', KEYS[1])";

impl Store {
    /// Checks whether limiters can work with the store, for the start of a program.
    ///
    /// The check makes four calls in sequence, each for a tag in a different quarter of a cluster's
    /// slots, so it reaches at most four servers of a cluster. A cluster server at an address of a
    /// single server is detected unless the server has three quarters of all tags. Each call runs
    /// every command of the scripts at a key that no limiter uses. The commands that only a limit
    /// of permits in use [needs](crate::operating#keys-and-permissions) are run if such a limit was
    /// [built](crate::CountingBuilder::build) over this store before.
    ///
    /// Each call has the [timeout](crate::StoreBuilder::timeout) of the store. The first call
    /// connects, which takes several round trips: if the timeout is shorter, the store counts as
    /// away.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] that describes the fault. While the store is merely
    /// [away](StoreError::is_away), limiters decide by [`WhileAway`](crate::WhileAway).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the check. A call that was already made is carried out.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate_redis::Store;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::open("redis://127.0.0.1")?;
    /// match store.check().await {
    ///     Err(error) if !error.is_away() => return Err(error.into()),
    ///     // A store that is away may be back before the first request.
    ///     _ => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self) -> Result<(), StoreError> {
        let in_use = if self.has_counting() { IN_USE } else { "" };
        let script = Arc::new(Script::new(format!("{SELF_TEST}{in_use}\nreturn 1")));
        for key in key::of_checks(self.prefix()) {
            let mut cmd = redis::cmd("EVALSHA");
            cmd.arg(&script.hash).arg(1).arg(key);
            let away = match self.ask(cmd, script.clone(), Deadline::of(self.timeout())).await {
                Ok(Value::Int(1)) => continue,
                Ok(_) => self.note_invalid_reply(),
                Err(away) => away,
            };
            return Err(self.error_of(away));
        }
        Ok(())
    }
}
