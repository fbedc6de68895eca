//! [`Store::check`]: whether limiters can work with a store.

use std::sync::Arc;

use redis::Value;

use crate::connection::SELF_TEST;
use crate::error::StoreError;
use crate::key;
use crate::script::Script;
use crate::store::{Deadline, Store};

/// Makes the further commands of the script of permits in use, after the self-test. The only one
/// that writes comes last, so a missing permission leaves no key.
const IN_USE: &str = "
make('HMGET', KEYS[1], 'field')
make('HGETALL', KEYS[1])
make('HDEL', KEYS[1], 'field')
make('PEXPIRE', KEYS[1], 1)
make('HSET', KEYS[1], 'field', 1)
make('DEL', KEYS[1])";

impl Store {
    /// Asks the store whether limiters can work with it, for the start of a program.
    ///
    /// The check makes four calls one after the other, each for a tag in another quarter of a
    /// cluster, so it asks at most four servers of a cluster. A server of a cluster at an address
    /// of a single one is found unless the server has three quarters of all tags. A call makes each
    /// command of the scripts, at a key that no limiter has. The commands that only a limit of
    /// permits in use [needs](crate::operating#keys-and-permissions) are made if such a limit was
    /// [built](crate::CountingBuilder::build) over this store before.
    ///
    /// Each call has the [timeout](crate::StoreBuilder::timeout) of the store. The first one
    /// connects, which takes several round trips: over a shorter timeout, the store is away.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] that says what is wrong. While the store is merely
    /// [away](StoreError::is_away), limiters decide by [`WhileAway`](crate::WhileAway).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the check. A call that was made is carried out.
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
            match self.ask(cmd, script.clone(), Deadline::of(self.timeout())).await {
                Ok(Value::Int(1)) => continue,
                Ok(_) => _ = self.note_nonsense(),
                Err(_) => {}
            }
            return Err(self.last_error());
        }
        Ok(())
    }
}
