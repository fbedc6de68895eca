//! The calls of an [`AnyLimiter`](tidegate::AnyLimiter) that request permits and close a limiter,
//! as methods of the limiters over a store, so that no handle is needed for them.

/// Adds these methods to a type that is a [`Limiter`](tidegate::Limiter).
macro_rules! methods {
    ($limiter:ty) => {
        impl $limiter {
            /// Takes one permit now, or refuses. It blocks the thread for the round trip; in a
            /// task, await [`acquire_now`](Self::acquire_now).
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::try_acquire`](tidegate::AnyLimiter::try_acquire).
            pub fn try_acquire(&self) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
                tidegate::Limiter::try_acquire(self, &tidegate::AllRequest::new())
            }

            /// Takes all permits of the request now, or refuses, like
            /// [`try_acquire`](Self::try_acquire).
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::try_acquire_many`](tidegate::AnyLimiter::try_acquire_many).
            pub fn try_acquire_many<'a>(
                &self,
                request: impl Into<tidegate::AllRequest<'a>>,
            ) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
                tidegate::Limiter::try_acquire(self, &request.into())
            }

            /// Takes all permits of the request now, or refuses. It waits for the store's reply,
            /// and blocks no thread.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::acquire_now`](tidegate::AnyLimiter::acquire_now).
            pub fn acquire_now<'a>(
                &self,
                request: impl Into<tidegate::AllRequest<'a>>,
            ) -> tidegate::AcquireAny {
                tidegate::Limiter::acquire_now(self, &request.into())
            }

            /// Waits for one permit of each limit.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::acquire`](tidegate::AnyLimiter::acquire).
            pub fn acquire(&self) -> tidegate::AcquireAny {
                tidegate::Limiter::acquire(self, &tidegate::AllRequest::new())
            }

            /// Waits for the permits of the request.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::acquire_many`](tidegate::AnyLimiter::acquire_many).
            pub fn acquire_many<'a>(
                &self,
                request: impl Into<tidegate::AllRequest<'a>>,
            ) -> tidegate::AcquireAny {
                tidegate::Limiter::acquire(self, &request.into())
            }

            /// Waits for one permit of each limit if that takes no longer than `within`; otherwise
            /// refuses at once.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::acquire_within`](tidegate::AnyLimiter::acquire_within).
            pub fn acquire_within(&self, within: std::time::Duration) -> tidegate::AcquireAny {
                tidegate::Limiter::acquire(self, &tidegate::AllRequest::new().within(within))
            }

            /// Waits for one permit of each limit, and blocks the thread until then.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::blocking_acquire`](tidegate::AnyLimiter::blocking_acquire).
            pub fn blocking_acquire(&self) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
                tidegate::Limiter::blocking_acquire(self, &tidegate::AllRequest::new())
            }

            /// Waits for the permits of the request, and blocks the thread until then.
            ///
            /// # Errors
            ///
            /// Like
            /// [`AnyLimiter::blocking_acquire_many`](tidegate::AnyLimiter::blocking_acquire_many).
            pub fn blocking_acquire_many<'a>(
                &self,
                request: impl Into<tidegate::AllRequest<'a>>,
            ) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
                tidegate::Limiter::blocking_acquire(self, &request.into())
            }

            /// Takes a position in the queue now, for a cost that is known only later. Like the
            /// handle [for tasks](tidegate::AnyLimiter::non_blocking), it blocks no thread: the
            /// reservation may not be decided yet. When it is awaited, it waits for the store and
            /// for its time.
            ///
            /// # Errors
            ///
            /// Like [`AnyLimiter::reserve`](tidegate::AnyLimiter::reserve). If the store refuses,
            /// the reservation is refused when it is awaited.
            pub fn reserve<'a>(
                &self,
                request: impl Into<tidegate::AllRequest<'a>>,
            ) -> Result<tidegate::AnyReservation, tidegate::AllRefusal> {
                let request = request.into();
                match tidegate::Limiter::non_blocking(self) {
                    Some(non_blocking) => non_blocking.reserve(request),
                    None => tidegate::Limiter::reserve(self, &request),
                }
            }

            /// Closes the limiter and its clones for good, in this process. Requests that wait and
            /// later requests are refused as [`Refusal::Closed`](tidegate::Refusal::Closed).
            /// Returns whether the limiter was open.
            pub fn close(&self) -> bool {
                tidegate::Limiter::close(self).is_ok_and(|was_open| was_open)
            }

            /// Returns whether the limiter was [closed](Self::close).
            #[must_use]
            pub fn is_closed(&self) -> bool {
                tidegate::Limiter::is_closed(self)
            }
        }
    };
}

pub(crate) use methods;
