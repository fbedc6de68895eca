//! Removes the shares of an outage when it is over.

use std::sync::Weak;

use crate::share;
use crate::store::Inner;

/// Removes the shares that no outage needs, until none is left.
pub(super) async fn tidy(store: Weak<Inner>) {
    loop {
        tokio::time::sleep(share::TIDY_INTERVAL).await;
        let Some(inner) = store.upgrade() else { return };
        if inner.shares.tidy(inner.unix_time()) {
            return;
        }
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use crate::connection::{Servers, Wire};
    use crate::model::{Model, Network, run};
    use crate::{Store, WhileAway};

    /// The shares of all keys of an outage stayed in memory until the next one.
    #[test]
    fn the_shares_of_an_outage_are_forgotten_after_it() {
        for line in ["token_bucket 60/min burst 60", "fixed_window 60/min", "sliding_log 60/min"] {
            run(async {
                let model = Model::new(1, Network::steady(Duration::from_millis(1)));
                let servers = Servers::one(Wire::Model(model.link()));
                let two = NonZeroU32::new(2).expect("not zero");
                let builder = Store::builder("redis://model").while_away(WhileAway::ShareOf(two));
                let (store, work) = builder.parts(servers).expect("a store");
                tokio::spawn(work);
                let users = store.keyed("users").limit("calls", line).build().expect("a limiter");
                drop(users.acquire_now("alice", 1).await.expect("a permit"));
                for outages in 1..3 {
                    model.stop(true);
                    for user in 0..100 {
                        let user = format!("{outages}-{user}");
                        drop(users.acquire_now(&user, 1).await.expect("a permit of the share"));
                    }
                    assert_eq!(store.0.shares.tags(), [100]);
                    model.stop(false);
                    tokio::time::sleep(Duration::from_secs(300)).await;
                    assert_eq!(store.0.shares.tags(), [], "{line}");
                }
            });
        }
    }
}
