//! Asks the operating system to wake the calling thread on time.

/// Linux may wake a parked thread up to 50 us late, to wake several threads at once. This sets the
/// calling thread's slack to the smallest value.
///
/// Since Linux 4.6 the kernel accepts the value as a file, `/proc/TID/timerslack_ns`. That needs
/// neither `unsafe` nor a crate that wraps `prctl`. If the file is missing, the slack stays as it
/// is.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn precise_parking() {
    // `PID/task/TID`. The kernel has the file only in the directory of a TID directly below
    // `/proc`.
    let Ok(thread) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(tid) = thread.file_name() else { return };
    let file = std::path::Path::new("/proc").join(tid).join("timerslack_ns");
    drop(std::fs::write(file, "1"));
}

/// Other systems have no such setting for a thread.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn precise_parking() {}
