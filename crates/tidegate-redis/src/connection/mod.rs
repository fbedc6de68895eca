//! The servers of a store, and the call of a script there.
//!
//! The client library repeats nothing by itself here. Of it, this crate uses one connection
//! ([`link`]), without deadlines. It uses neither the library's reconnecting nor its clients of
//! clusters and sentinels, because these resend a call after a network error, when the call may
//! have run.

mod address;
mod attempt;
mod cluster;
mod congestion;
mod driver;
mod failure;
mod link;
mod sent;
mod sentinel;
mod server;
mod tls;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::breaker::Admission;
use crate::lock::lock;
use crate::script::Script;
use cluster::{Cluster, slot, slot_of};
use failure::Meaning;
use sentinel::Sentinels;

pub(crate) use address::{Address, wants_tls};
pub(crate) use congestion::CallSlot;
pub(crate) use failure::Failure;
pub(crate) use link::SELF_TEST;
pub(crate) use sent::{LastAttempt, Sent, Stage};
pub(crate) use server::{SentCall, Server};
pub(crate) use tls::Connector;
#[cfg(feature = "tls")]
pub use tls::Tls;
pub(crate) use wire::Wire;

/// The pause before the single retry of a call to a server that is loading or changing roles.
const PAUSE: Duration = Duration::from_millis(5);

/// The number of cluster redirections that a call follows.
const REDIRECTIONS: u32 = 5;

/// Why a call has no reply.
pub(crate) enum NoReply {
    Failed(Failure),
    /// The call is not made, because the server that it is led to rests for this time.
    Rests(Duration),
}

impl From<Failure> for NoReply {
    fn from(failure: Failure) -> NoReply {
        NoReply::Failed(failure)
    }
}

/// The servers of a store.
pub(crate) enum Servers {
    One(Arc<Server>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    pub(crate) fn one(wire: Wire) -> Servers {
        Servers::One(Server::new(wire))
    }

    /// The servers at an address. `key` is used to test what a server allows.
    pub(crate) fn at(address: Address, key: String) -> Servers {
        match address {
            Address::Server(node) => Servers::one(Wire::Server { node, key: Some(key) }),
            Address::Sentinels { sentinels, name, login } => {
                let sentinels = Arc::new(Sentinels::new(sentinels, name, login));
                Servers::one(Wire::Sentinels { sentinels, key })
            }
            Address::Cluster(seeds) => Servers::Cluster(Cluster::new(seeds)),
        }
    }

    /// The server that a call is for, as far as it is known. Its breaker is checked before the
    /// call.
    pub(crate) fn server_of(&self, by_hash: &Cmd) -> Arc<Server> {
        match self {
            Servers::One(server) => server.clone(),
            Servers::Cluster(cluster) => cluster.owner(slot_of(by_hash)),
        }
    }

    /// The server that has a key, as far as it is known.
    pub(crate) fn server_of_key(&self, key: &str) -> Arc<Server> {
        match self {
            Servers::One(server) => server.clone(),
            Servers::Cluster(cluster) => cluster.owner(slot(key.as_bytes())),
        }
    }

    /// Divides all slots between some servers of a cluster, as if the cluster had replied so.
    #[cfg(test)]
    pub(crate) fn find_all(&self, servers: u16) {
        if let Servers::Cluster(cluster) = self {
            cluster.find_all(servers);
        }
    }

    /// For a cluster, returns the servers of which others have the slots by now, each of them once.
    pub(crate) fn replaced(&self) -> Vec<Arc<Server>> {
        match self {
            Servers::One(_) => Vec::new(),
            Servers::Cluster(cluster) => cluster.replaced(),
        }
    }

    /// Returns whether a model of a server replies, on the time of its simulation.
    pub(crate) fn is_model(&self) -> bool {
        #[cfg(feature = "simulation")]
        return matches!(self, Servers::One(server) if server.is_model());
        #[cfg(not(feature = "simulation"))]
        false
    }

    pub(crate) fn any_server(&self, is: impl Fn(&Server) -> bool) -> bool {
        match self {
            Servers::One(server) => is(server),
            Servers::Cluster(cluster) => cluster.servers().iter().any(|server| is(server)),
        }
    }

    /// Returns whether calls to a server that has slots are suspended. No call may ever go again to
    /// a server that was only asked for keys that were moved there.
    pub(crate) fn is_away(&self) -> bool {
        let is_open = |server: &Arc<Server>| lock(&server.breaker).is_open();
        match self {
            Servers::One(server) => is_open(server),
            Servers::Cluster(cluster) => cluster.owners().iter().any(is_open),
        }
    }

    /// Sends a call on this thread if its server is known, connected and replying. The waker is
    /// woken when there is a reply.
    pub(crate) fn begin(&self, by_hash: &Arc<Cmd>, waker: &Waker) -> Option<SentCall> {
        let server = self.server_of(by_hash);
        let is_sure = matches!(self, Servers::One(_)) || !server.is_suspect.load(Ordering::Relaxed);
        is_sure.then(|| server.begin(by_hash.clone(), waker)).flatten()
    }

    /// Makes a call by the hash of its script, or by the text if the server does not know the hash.
    /// The call is repeated only if the server reported that it did not carry the call out. `sent`
    /// records the attempts. A server to which the call is led admits it for `timeout`.
    /// `redirected_by` is called with each server that redirects the call, and so has replied, and
    /// with how its breaker admitted the call.
    pub(crate) async fn call(
        &self,
        by_hash: &Cmd,
        script: &Script,
        mut begun: Option<SentCall>,
        sent: &Sent,
        timeout: Duration,
        redirected_by: impl Fn(&Server, Admission),
    ) -> Result<Value, NoReply> {
        let (mut redirections, mut repeated, mut retried_hash) = (0, false, false);
        // A redirection names the server, and whether that server must be asked to make an
        // exception (`ASKING`).
        let mut redirected: Option<(Arc<Server>, bool)> = None;
        loop {
            let begun = begun.take();
            let (server, asking) = match (&begun, &redirected, self) {
                (Some(begun), ..) => (begun.server.clone(), false),
                (_, Some(redirected), _) => redirected.clone(),
                (.., Servers::One(server)) => (server.clone(), false),
                (.., Servers::Cluster(cluster)) => {
                    sent.asks_for_slots();
                    let found = cluster.find(slot_of(by_hash)).await;
                    sent.withdraw();
                    (found?, false)
                }
            };
            sent.leads_to(&server, timeout).map_err(NoReply::Rests)?;
            let texts = server.texts_sent.load(Ordering::Relaxed);
            let mut reply = match begun {
                Some(begun) => server.begun(begun, sent).await,
                None => {
                    // Calls that will try the hash once more go first.
                    if !retried_hash && server.has_turns() {
                        let _turn = server.turn();
                        drop(server.text(script).lock().await);
                    }
                    server.attempt(by_hash, asking, sent).await
                }
            };
            if matches!(&reply, Err((Meaning::NoScript, _))) {
                // One call at a time sends the text. The calls behind it try the hash once more, in
                // their order.
                let _turn = server.turn();
                let text = server.text(script);
                let mut last = text.lock().await;
                if !retried_hash && *last > texts {
                    retried_hash = true;
                    continue;
                }
                reply = server.attempt(&script.by_text(by_hash), asking, sent).await;
                *last = server.texts_sent.fetch_add(1, Ordering::Relaxed) + 1;
            }
            let (meaning, failure) = match reply {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            match (&meaning, self) {
                (Meaning::Moved(to) | Meaning::Ask(to), Servers::Cluster(cluster)) => {
                    redirections += 1;
                    let moved = matches!(meaning, Meaning::Moved(_));
                    let next = match moved {
                        true => cluster.moved(slot_of(by_hash), to, &server),
                        false => cluster.redirected(to, &server),
                    };
                    let Some(next) = next.filter(|_| redirections <= REDIRECTIONS) else {
                        server.is_suspect.store(true, Ordering::Relaxed);
                        return Err(failure.into());
                    };
                    sent.is_redirected(&redirected_by);
                    redirected = Some((next, !moved));
                }
                (Meaning::Moved(_) | Meaning::Ask(_), Servers::One(_)) => {
                    let Failure::NotRun(text) = failure else { return Err(failure.into()) };
                    return Err(Failure::Misconfigured(text).into());
                }
                // A probe has dropped its connection. The next probe makes another one.
                (Meaning::NotReady, _) if !repeated && !sent.is_probe() => {
                    repeated = true;
                    tokio::time::sleep(PAUSE).await;
                }
                // The connection was dropped. The next one is to the primary, or to no server.
                (Meaning::ReadOnly, _) if !repeated => repeated = true,
                _ => {
                    if !matches!(meaning, Meaning::Misconfigured | Meaning::Refused) {
                        server.is_suspect.store(true, Ordering::Relaxed);
                    }
                    return Err(failure.into());
                }
            }
        }
    }
}
