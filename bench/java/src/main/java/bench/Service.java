package bench;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A service of the JDK's HTTP server, which asks an RRateLimiter about each request and answers it itself: the port, that of
 * Redis, and the text to answer are its arguments.
 */
public class Service {
    public static void main(String[] arguments) throws IOException {
        var config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[1]);
        var redisson = Redisson.create(config);
        var body = arguments[2].getBytes();
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 1024);
        server.setExecutor(Executors.newFixedThreadPool(64));
        server.createContext("/one-key", exchange -> answer(exchange, redisson, "one-key:", 10_000_000, 1, body));
        server.createContext("/burst", exchange -> answer(exchange, redisson, "burst:", 100, 10, body));
        server.start();
    }

    private static void answer(
            HttpExchange exchange, RedissonClient redisson, String name, long rate, long seconds, byte[] body)
            throws IOException {
        RRateLimiter limiter = redisson.getRateLimiter(name + exchange.getRequestHeaders().getFirst("X-Key"));
        // As services do that don't know which keys there are: this writes nothing once there is a rate.
        if (!limiter.isExists()) {
            limiter.trySetRate(RateType.OVERALL, rate, Duration.ofSeconds(seconds));
        }
        try (exchange) {
            if (limiter.tryAcquire()) {
                exchange.sendResponseHeaders(200, body.length);
                exchange.getResponseBody().write(body);
            } else {
                exchange.sendResponseHeaders(429, -1);
            }
        }
    }
}
