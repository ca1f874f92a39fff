package bench;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.context.annotation.Bean;
import reactor.core.publisher.Mono;

/** Spring Cloud Gateway with its RedisRateLimiter, as application.yaml configures it. */
@SpringBootApplication
public class Gateway {
    public static void main(String[] arguments) {
        SpringApplication.run(Gateway.class, arguments);
    }

    /** Requests are counted by X-Key, as if it were the name of a user. */
    @Bean
    KeyResolver userKeyResolver() {
        return exchange -> Mono.justOrEmpty(exchange.getRequest().getHeaders().getFirst("X-Key"));
    }
}
