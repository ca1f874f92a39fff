//! What the system says of this process, by the names that all programs give it (proc(5)). Only Linux does.

use std::fs;

use super::Page;

/// Ticks of a second in /proc, on all machines of today.
const TICKS: f64 = 100.0;

pub(super) fn write(page: &mut Page<'_>) {
    if let Some(Stat { cpu_ticks, started_ticks, booted_seconds }) = Stat::read() {
        let (cpu, started) = (cpu_ticks as f64 / TICKS, booted_seconds as f64 + started_ticks as f64 / TICKS);
        page.counter("process_cpu_seconds", "Time of processors that the process took", cpu);
        page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970", started);
    }
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Memory that the process holds", bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is the one that lists them.
        page.gauge("process_open_fds", "Files and sockets that are open", files.count() as u64 - 1);
    }
}

struct Stat {
    /// In user mode and in the kernel.
    cpu_ticks: u64,
    /// Since the machine booted.
    started_ticks: u64,
    booted_seconds: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        let (own, all) =
            (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/stat").ok()?);
        // The second field is a name in parentheses, in which anything may be.
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
