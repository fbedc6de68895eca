//! The network between clients and a server, and the faults of both.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Arg, Cmd, RedisError, Value};
use tokio::sync::{Notify, oneshot};

use super::clock::Clock;
use super::data::{self, Server};
use crate::key;
use crate::lock::lock;

/// The Unix time at which a simulation begins, in microseconds.
const START: u64 = 1_764_000_000_000_000;

/// The behaviour of a network and a server without faults.
#[derive(Clone, Debug)]
pub struct Network {
    /// The latency of one direction. Each client has one value of this range, with as many clients
    /// in each octave.
    pub latency: RangeInclusive<Duration>,
    /// The mean additional latency of a message, as a share of its latency.
    pub jitter: f64,
    /// The share of replies that are lost.
    pub lost_answers: f64,
    /// The time that a server works on a call.
    pub service: Duration,
    /// The lag of a replica.
    pub lag: Duration,
}

impl Network {
    /// Creates a network with this latency for each message, and a server that works 10 us on a
    /// call.
    #[must_use]
    pub fn steady(latency: Duration) -> Network {
        Network {
            latency: latency..=latency,
            jitter: 0.0,
            lost_answers: 0.0,
            service: Duration::from_micros(10),
            lag: Duration::ZERO,
        }
    }
}

/// A server and its network. Clones are handles to one model.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Notified when an event was added that comes before all others.
    sooner: Notify,
}

struct State {
    clock: Clock,
    random: SmallRng,
    network: Network,
    server: Server,
    life: Life,
    /// The number of times that another server replaced the current one. Each connection is to the
    /// server of one number.
    number: u64,
    /// What becomes of a call on a connection to a server of an earlier number.
    earlier: Earlier,
    /// The time at which the server has finished all received calls.
    free_at: u64,
    links: Vec<Line>,
    /// The messages on their way: by their time in microseconds since the start, and then in the
    /// order in which they were added.
    events: BTreeMap<(u64, u64), Message>,
    events_made: u64,
    calls: u64,
    /// The number of them that counted the processes.
    counting_calls: u64,
}

/// What a server does with a call.
enum Life {
    Up,
    /// The server receives calls, and replies to none until it resumes.
    Stopped(Vec<Call>),
    /// Calls are lost on their way to the server.
    Unreachable,
    Down,
}

/// What becomes of a call on a connection from before a fault.
#[derive(Clone, Copy)]
enum Earlier {
    Reset,
    /// The server goes on as a replica.
    Replica,
    /// The call is lost.
    Silent,
}

/// The route of one client to the server.
struct Line {
    latency: f64,
    /// The time of the last message in each direction: messages do not overtake each other.
    last: [u64; 2],
    /// While the route is cut, it holds messages, like those that a connection will retransmit.
    held: Option<Vec<Message>>,
}

enum Message {
    Call(Call),
    Wake(oneshot::Sender<()>),
    Answer { link: usize, answer: Answer, to: oneshot::Sender<Answer> },
}

struct Call {
    link: usize,
    /// The number of the server that the connection is to; `None` connects.
    server: Option<u64>,
    args: Vec<Vec<u8>>,
    to: oneshot::Sender<Answer>,
}

/// The number of the server, and a value or why the connection ended.
type Answer = (u64, Result<Value, ErrorKind>);

/// The route of a store to its server.
pub(crate) struct Link {
    model: Model,
    number: usize,
}

/// A connection to the server of a number.
#[derive(Clone)]
pub(crate) struct Connection {
    model: Model,
    link: usize,
    server: u64,
}

impl Model {
    /// Creates a model in the current [simulation](crate::simulation::run), which has at most one.
    ///
    /// # Panics
    ///
    /// Outside a simulation, and if there is no memory for an interpreter.
    pub fn new(seed: u64, network: Network) -> Model {
        crate::jitter::seed(seed);
        let clock = Clock::current();
        let server = Server::new(micros(network.lag)).expect("an interpreter");
        let state = State {
            clock: clock.clone(),
            random: SmallRng::seed_from_u64(seed),
            network,
            server,
            life: Life::Up,
            number: 0,
            earlier: Earlier::Reset,
            free_at: 0,
            links: Vec::new(),
            events: BTreeMap::new(),
            events_made: 0,
            calls: 0,
            counting_calls: 0,
        };
        let inner = Arc::new(Inner { state: Mutex::new(state), sooner: Notify::new() });
        let model = Arc::downgrade(&inner);
        tokio::spawn(async move {
            loop {
                let Some(inner) = model.upgrade() else { return };
                let next = lock(&inner.state).work();
                clock.go_to(next, &inner.sooner).await;
            }
        });
        Model(inner)
    }

    /// The route of another client.
    pub(crate) fn link(&self) -> Link {
        let mut state = self.state();
        let (low, high) = state.network.latency.clone().into_inner();
        let (low, high) = (micros(low).max(1) as f64, micros(high).max(1) as f64);
        let latency = low * (high / low).powf(state.random.random());
        state.links.push(Line { latency, last: [0; 2], held: None });
        Link { model: self.clone(), number: state.links.len() - 1 }
    }

    /// Cuts or restores the routes of clients, by the order in which they opened.
    pub fn cut(&self, clients: impl IntoIterator<Item = usize>, is_cut: bool) {
        let mut state = self.state();
        for client in clients {
            let line = &mut state.links[client];
            let held = match is_cut {
                true => {
                    line.held.get_or_insert_default();
                    continue;
                }
                false => line.held.take().unwrap_or_default(),
            };
            for message in held {
                _ = state.send(message);
            }
        }
        drop(state);
        self.0.sooner.notify_one();
    }

    /// Stops the server, which still receives calls, or resumes it.
    pub fn stop(&self, is_stopped: bool) {
        let mut state = self.state();
        match (&mut state.life, is_stopped) {
            (Life::Up, true) => state.life = Life::Stopped(Vec::new()),
            (Life::Stopped(calls), false) => {
                let (calls, now) = (std::mem::take(calls), state.now());
                state.life = Life::Up;
                state.free_at = state.free_at.max(now);
                for call in calls {
                    state.carry_out(now, call);
                }
            }
            _ => {}
        }
        drop(state);
        self.0.sooner.notify_one();
    }

    /// Ends the server. Its connections are reset.
    pub fn kill(&self) {
        let mut state = self.state();
        let now = state.now();
        state.number += 1;
        state.earlier = Earlier::Reset;
        if let Life::Stopped(calls) = std::mem::replace(&mut state.life, Life::Down) {
            for call in calls {
                state.answer(now, call, Err(ErrorKind::ConnectionReset));
            }
        }
        drop(state);
        self.0.sooner.notify_one();
    }

    /// Makes all connections silent, as if a firewall had forgotten them. New connections work.
    pub fn silence(&self) {
        let mut state = self.state();
        state.number += 1;
        state.earlier = Earlier::Silent;
    }

    /// Loses all calls from now on, without an error, also those that connect, or ends that.
    pub fn lose_calls(&self, is_lost: bool) {
        self.state().life = if is_lost { Life::Unreachable } else { Life::Up };
    }

    /// Starts a server that was killed, without its data.
    pub fn start_empty(&self) {
        let mut state = self.state();
        state.server.forget_keys();
        state.server.forget_scripts();
        state.life = Life::Up;
    }

    /// Makes a replica the server, with the data that it has. The previous server is killed, or
    /// goes on as a replica.
    pub fn fail_over(&self, is_demoted: bool) {
        if !is_demoted {
            self.kill();
        }
        let mut state = self.state();
        let now = START + state.now();
        if is_demoted {
            state.number += 1;
            state.earlier = Earlier::Replica;
        }
        state.server.become_replica(now);
        state.server.forget_scripts();
        state.life = Life::Up;
    }

    /// Waits until a time since the start, to the microsecond.
    pub async fn sleep_until(&self, time: Duration) {
        let (to, woken) = oneshot::channel();
        let is_first = {
            let mut state = self.state();
            let at = micros(time).max(state.now());
            state.push(at, Message::Wake(to))
        };
        if is_first {
            self.0.sooner.notify_one();
        }
        _ = woken.await;
    }

    /// Returns the number of calls that servers carried out.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Returns how many of the [calls](Model::calls) counted the
    /// [processes](crate::Store::clients). A store makes such calls every two seconds, and more
    /// often at first, and they decide no request.
    #[must_use]
    pub fn counting_calls(&self) -> u64 {
        self.state().counting_calls
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        let mut state = self.state();
        let now = START + state.now();
        state.server.size(now)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    async fn ask(&self, link: usize, server: Option<u64>, args: Vec<Vec<u8>>) -> Answer {
        let (to, answer) = oneshot::channel();
        let is_first = self.state().send(Message::Call(Call { link, server, args, to }));
        if is_first {
            self.0.sooner.notify_one();
        }
        match answer.await {
            Ok(answer) => answer,
            // The reply was lost.
            Err(_) => std::future::pending().await,
        }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) async fn connect(&self) -> Result<Connection, RedisError> {
        let (model, link) = (self.model.clone(), self.number);
        match model.ask(link, None, Vec::new()).await {
            (server, Ok(_)) => Ok(Connection { model, link, server }),
            (_, Err(kind)) => Err(std::io::Error::from(kind).into()),
        }
    }
}

impl Connection {
    pub(crate) async fn call(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        let args = cmd.args_iter().map(|arg| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        });
        let (_, answer) = self.model.ask(self.link, Some(self.server), args.collect()).await;
        answer.map_err(|kind| std::io::Error::from(kind).into())
    }
}

impl Message {
    /// The link and the direction of a message.
    fn way(&self) -> Option<(usize, usize)> {
        match self {
            Message::Call(call) => Some((call.link, 0)),
            Message::Answer { link, .. } => Some((*link, 1)),
            Message::Wake(_) => None,
        }
    }
}

impl State {
    fn now(&self) -> u64 {
        micros(self.clock.now())
    }

    /// Sends a message now. Returns whether it is the next event.
    fn send(&mut self, message: Message) -> bool {
        let now = self.now();
        self.send_at(now, message)
    }

    fn send_at(&mut self, now: u64, message: Message) -> bool {
        let Some((link, way)) = message.way() else { return self.push(now, message) };
        let longer = -(1.0 - self.random.random::<f64>()).ln() * self.network.jitter;
        let line = &mut self.links[link];
        if let Some(held) = &mut line.held {
            held.push(message);
            return false;
        }
        let at = now + micros(Duration::from_secs_f64(line.latency * (1.0 + longer) / 1e6));
        line.last[way] = line.last[way].max(at);
        let at = line.last[way];
        self.push(at, message)
    }

    fn push(&mut self, at: u64, message: Message) -> bool {
        self.events_made += 1;
        let is_first = self.events.first_key_value().is_none_or(|((first, _), _)| at < *first);
        self.events.insert((at, self.events_made), message);
        is_first
    }

    /// Processes the due events. Returns the time of the next event.
    fn work(&mut self) -> Option<Duration> {
        let now = self.now();
        loop {
            let next = self.events.first_entry()?;
            let (at, _) = *next.key();
            if at > now {
                return Some(Duration::from_micros(at));
            }
            let message = next.remove();
            if let Some((link, _)) = message.way()
                && let Some(held) = &mut self.links[link].held
            {
                held.push(message);
                continue;
            }
            match message {
                Message::Call(call) => self.arrive(at, call),
                // A receiver that is gone does not wait any longer.
                Message::Answer { answer, to, .. } => _ = to.send(answer),
                Message::Wake(to) => _ = to.send(()),
            }
        }
    }

    fn arrive(&mut self, at: u64, call: Call) {
        let is_old = call.server.is_some_and(|server| server != self.number);
        match &mut self.life {
            _ if is_old => match self.earlier {
                Earlier::Reset => self.answer(at, call, Err(ErrorKind::ConnectionReset)),
                Earlier::Replica => {
                    let text = "READONLY You can't write against a read only replica.";
                    self.answer(at, call, Ok(data::error(text)));
                }
                Earlier::Silent => {}
            },
            Life::Down => self.answer(at, call, Err(ErrorKind::ConnectionRefused)),
            Life::Stopped(calls) => calls.push(call),
            Life::Unreachable => {}
            Life::Up => self.carry_out(at, call),
        }
    }

    fn carry_out(&mut self, at: u64, call: Call) {
        // A server carries out one call at a time, in the order of arrival.
        let begins = at.max(self.free_at);
        self.free_at = begins + micros(self.network.service);
        let answer = match call.server {
            Some(_) => {
                self.calls += 1;
                self.counting_calls += u64::from(call.args.get(3).is_some_and(|key| key::is_of_clients(key)));
                self.server.carry_out(START + begins, &call.args)
            }
            None => Value::Okay,
        };
        self.answer(self.free_at, call, Ok(answer));
    }

    fn answer(&mut self, at: u64, call: Call, answer: Result<Value, ErrorKind>) {
        // Only replies to calls are lost: a connection is made with several messages.
        if call.server.is_some() && self.random.random_bool(self.network.lost_answers) {
            return;
        }
        let Call { link, to, .. } = call;
        let answer = (self.number, answer);
        self.send_at(at, Message::Answer { link, answer, to });
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
