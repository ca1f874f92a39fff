//! Metrics of this process, by the names that Prometheus clients commonly use. Linux only (proc(5)).

use std::fs;

use super::Page;

/// Ticks per second in /proc. It is 100 on all current machines.
const TICKS: f64 = 100.0;

pub(super) fn write(page: &mut Page<'_>) {
    if let Some(Stat { cpu_ticks, started_ticks, booted_seconds }) = Stat::read() {
        let (cpu, started) = (cpu_ticks as f64 / TICKS, booted_seconds as f64 + started_ticks as f64 / TICKS);
        page.counter("process_cpu_seconds", "CPU time used by the process", cpu);
        page.gauge("process_start_time_seconds", "Start time of the process, in seconds since 1970", started);
    }
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Resident memory of the process", bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being listed.
        page.gauge("process_open_fds", "Open files and sockets", files.count() as u64 - 1);
    }
}

struct Stat {
    /// The time in user mode and in the kernel.
    cpu_ticks: u64,
    /// The start time since the machine booted.
    started_ticks: u64,
    booted_seconds: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        let (own, all) =
            (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/stat").ok()?);
        // The second field is a name in parentheses, which may contain anything.
        let fields: Vec<_> = own.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let booted = all.lines().find_map(|line| line.strip_prefix("btime "))?;
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            started_ticks: field(22)?,
            booted_seconds: booted.parse().ok()?,
        })
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}
