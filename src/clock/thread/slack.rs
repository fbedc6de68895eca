//! Asks the operating system to wake the calling thread on time.

/// Linux may wake a parked thread up to 50 us late, to wake several at once. This sets the calling
/// thread's slack to the smallest value.
///
/// The kernel takes it as a file, `/proc/TID/timerslack_ns`, since Linux 4.6. That needs neither
/// `unsafe` nor a crate that wraps `prctl`. If the file is not there, the slack stays as it is.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn precise_parking() {
    // `PID/task/TID`. The kernel has the file only in the directory of a TID right below `/proc`.
    let Ok(thread) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(tid) = thread.file_name() else { return };
    let file = std::path::Path::new("/proc").join(tid).join("timerslack_ns");
    drop(std::fs::write(file, "1"));
}

/// Other systems have no such setting for a thread.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn precise_parking() {}
