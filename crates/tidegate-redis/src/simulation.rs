//! Stores over a model of a server behind a network with faults, on tokio's paused time.
//!
//! Such stores run the code of stores over a server, down to the connection: deadline, breaker,
//! reconnecting, and the scripts, which a Lua interpreter runs. One seed gives one course of
//! events.

use crate::connection::{Servers, Wire};
use crate::error::OpenError;
use crate::store::{Store, StoreBuilder};

pub use crate::model::{Model, Network, run};

impl Model {
    /// Opens a store over this model, as another client. The address of the builder is not used.
    ///
    /// # Errors
    ///
    /// Like [`StoreBuilder::open`].
    pub fn open(&self, builder: StoreBuilder) -> Result<Store, OpenError> {
        let (store, work) = builder.parts(Servers::one(Wire::Model(self.link())))?;
        tokio::spawn(work);
        Ok(store)
    }
}
