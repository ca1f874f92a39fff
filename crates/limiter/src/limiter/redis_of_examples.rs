// A Redis for the examples that need one: they include this file, and it ends with them.

struct Redis(std::process::Child, String);

impl Redis {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut command = std::process::Command::new("redis-server");
        command.args(["--port", &address.port().to_string(), "--save", ""]).stdout(std::process::Stdio::null());
        let process = command.spawn().expect("redis-server is installed");
        while std::net::TcpStream::connect(address).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Self(process, format!("redis://{address}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
