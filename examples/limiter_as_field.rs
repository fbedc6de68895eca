//! A library type with a limiter as a field, without type parameters. Its users choose the limiter:
//! any policy, several limits at once, or no limit. Here the limiters use tokio's paused time, as
//! in a test, so the program ends at once. It prints the time of each call.
//!
//! `cargo run --example limiter_as_field`

use tidegate::{AllOf, AllRefusal, AnyLimiter, FixedWindow, Rate, RateLimiter, TokenBucket};
use tidegate::{TokioClock, Unlimited};
use tokio::time::Instant;

/// A client of a weather service, as in a library.
#[derive(Clone, Debug)]
pub struct Weather {
    limiter: AnyLimiter,
}

impl Default for Weather {
    /// Creates a client that makes 5 calls per second.
    fn default() -> Weather {
        Weather::with_limiter(RateLimiter::smooth_bursty(Rate::per_second(5)))
    }
}

impl Weather {
    /// Creates a client whose calls wait for this limiter.
    pub fn with_limiter(limiter: impl Into<AnyLimiter>) -> Weather {
        Weather { limiter: limiter.into() }
    }

    /// Waits for the limiter, and then calls the service.
    pub async fn forecast(&self, city: &str) -> Result<String, AllRefusal> {
        // Held until the response has arrived, for limits of calls in flight.
        let _permits = self.limiter.acquire().await?;
        Ok(format!("{city}: sunny"))
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), AllRefusal> {
    let clock = TokioClock::new();
    let second = || RateLimiter::with_clock(TokenBucket::new(Rate::per_second(2), 1), clock);
    let minute = RateLimiter::with_clock(FixedWindow::new(Rate::per_minute(4)), clock);
    let contract = AllOf::new("per second", &second()).with("per minute", &minute);
    let clients = [
        ("2 per second", Weather::with_limiter(second())),
        ("and 4 per minute", Weather::with_limiter(contract)),
        ("unlimited", Weather::with_limiter(RateLimiter::with_clock(Unlimited, clock))),
    ];
    for (name, weather) in clients {
        println!("{name}:");
        let begin = Instant::now();
        for city in ["Bergen", "Lima", "Osaka", "Perth", "Quito", "Tunis"] {
            let forecast = weather.forecast(city).await?;
            println!("  {:>7.1?}  {forecast}", begin.elapsed());
        }
    }
    Ok(())
}
