// A Redis for the examples that need one: they include this file, and it ends with them.

struct Redis(std::process::Child, String);

impl Redis {
    fn start() -> Self {
        let socket = std::env::temp_dir().join(format!("tollgate-example-{}.sock", std::process::id()));
        let mut command = std::process::Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(std::process::Stdio::null());
        let mut process = command.spawn().expect("redis-server is installed");
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(process.try_wait().unwrap().is_none(), "redis-server has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Self(process, format!("redis+unix://{}", socket.display()))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(self.1.trim_start_matches("redis+unix://"));
    }
}
