//! A network between clients and a server, which a test breaks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes on the messages of clients and a server. Clients see one address, whichever server is
/// behind it.
#[derive(Clone)]
pub(crate) struct Relay {
    port: u16,
    rules: Arc<Mutex<Rules>>,
    /// Rises each time that connections are cut or silenced.
    epoch: watch::Sender<(u32, Broken)>,
}

struct Rules {
    to: u16,
    /// The maximum delay of a reply.
    delay: Duration,
    /// The share of replies instead of which the connection ends.
    lost: f64,
    /// Sent instead of each reply.
    instead: Option<&'static str>,
    /// Sent instead of the replies to the next messages, which the server does not get.
    next: VecDeque<String>,
    random: SmallRng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    /// The connection is closed.
    Cut,
    /// Nothing is passed on, and neither side is notified.
    Silent,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let random = SmallRng::seed_from_u64(7);
        let rules = Rules {
            to: port,
            delay: Duration::ZERO,
            lost: 0.0,
            instead: None,
            next: VecDeque::new(),
            random,
        };
        let (port, rules) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(rules)));
        let relay = Relay { port, rules, epoch: watch::Sender::new((0, Broken::No)) };
        let this = relay.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let port = this.rules().to;
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                tokio::spawn(this.clone().pass_on(client, server));
            }
        });
        relay
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the server for new connections.
    pub(crate) fn lead_to(&self, port: u16) {
        self.rules().to = port;
    }

    /// Sets the delay and the loss of replies.
    pub(crate) fn harm(&self, delay: Duration, lost: f64) {
        let mut rules = self.rules();
        (rules.delay, rules.lost) = (delay, lost);
    }

    /// Sets the text that clients get instead of each reply.
    pub(crate) fn reply_instead(&self, answer: &'static str) {
        self.rules().instead = Some(answer);
    }

    /// Sets the texts that clients get instead of the replies to their next messages. The server
    /// does not get these messages.
    pub(crate) fn answer_next(&self, answers: impl IntoIterator<Item = String>) {
        self.rules().next.extend(answers);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.epoch.send_modify(|(epoch, broken)| (*epoch, *broken) = (*epoch + 1, Broken::Cut));
    }

    /// Passes on nothing more on the existing connections, and notifies neither side, like a
    /// firewall that has forgotten them.
    pub(crate) fn silence(&self) {
        self.epoch.send_modify(|(epoch, broken)| (*epoch, *broken) = (*epoch + 1, Broken::Silent));
    }

    async fn pass_on(self, mut client: TcpStream, mut server: TcpStream) {
        let mut epoch = self.epoch.subscribe();
        epoch.mark_unchanged();
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            tokio::select! {
                // A broken connection passes on no later message.
                biased;
                changed = epoch.changed() => {
                    let silent = changed.is_ok() && epoch.borrow().1 == Broken::Silent;
                    if silent {
                        // The connections stay open.
                        std::future::pending::<()>().await;
                    }
                    return;
                }
                n = client.read(&mut asked) => {
                    let n = n.unwrap_or(0);
                    let next = self.rules().next.pop_front();
                    let passed_on = match next {
                        Some(answer) => client.write_all(answer.as_bytes()).await,
                        None => server.write_all(&asked[..n]).await,
                    };
                    if n == 0 || passed_on.is_err() {
                        return;
                    }
                }
                n = server.read(&mut answered) => {
                    let n = n.unwrap_or(0);
                    let (delay, is_lost, instead) = {
                        let rules = &mut *self.rules();
                        let longest = u64::try_from(rules.delay.as_micros()).unwrap();
                        let delay = rules.random.random_range(0..=longest);
                        (Duration::from_micros(delay), rules.random.random_bool(rules.lost), rules.instead)
                    };
                    if delay > Duration::ZERO {
                        tokio::time::sleep(delay).await;
                    }
                    let told = instead.map_or(&answered[..n], str::as_bytes);
                    if n == 0 || is_lost || client.write_all(told).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
